"""The result of a simulated service: its row in a sweep, and its page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.units import format_count, format_percent, format_time, format_tokens_rate
from scenarios.report.blocks import Block, Card, Curve, Headline, Limit, Lines, Section, Table
from scenarios.report.charts.axis_unit import time_unit
from scenarios.workloads.service.capacity import capacity_section
from scenarios.workloads.service.reading import ServiceScenario
from scenarios.workloads.service.summary import ServiceSummary, Spread, Waits
from scenarios.workloads.workload import Outcome
from sim.serving.service import Served

_COLOUR: Final = "#2a78d6"
_MOST_POINTS: Final = 400


class ServiceRow(Struct, frozen=True, kw_only=True):
    """The results of a point of a sweep; None where no request has such a time."""

    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    latency_p50_s: float | None
    output_tokens_per_s: float
    goodput_per_s: float
    met_slo_fraction: float
    mean_latency_s: float | None
    mean_ttft_s: float | None
    mean_tpot_s: float | None


@dataclass(frozen=True, slots=True)
class ServiceOutcome(Outcome):
    """What came of the requests, and the answers."""

    scenario: ServiceScenario
    served: Served
    summary: ServiceSummary

    def row(self) -> ServiceRow:
        """Return the results that a sweep compares."""
        found, ttft, tpot, latency = self.summary, self.summary.ttft_s, self.summary.tpot_s, self.summary.latency_s
        return ServiceRow(
            ttft_p50_s=None if ttft is None else ttft.p50,
            ttft_p99_s=None if ttft is None else ttft.p99,
            tpot_p50_s=None if tpot is None else tpot.p50,
            tpot_p99_s=None if tpot is None else tpot.p99,
            latency_p50_s=None if latency is None else latency.p50,
            output_tokens_per_s=found.output_tokens_per_s,
            goodput_per_s=found.goodput_per_s,
            met_slo_fraction=found.met_slo_fraction,
            mean_latency_s=None if latency is None else latency.mean,
            mean_ttft_s=None if ttft is None else ttft.mean,
            mean_tpot_s=None if tpot is None else tpot.mean,
        )

    def blocks(self, *, drawn: bool = True) -> Sequence[Block]:
        """Return the report: answers, percentiles, waits, and how times spread over requests."""
        del drawn
        answered = (self._times(), self._waits(self.summary.waits_s)) if self.summary.waits_s is not None else ()
        sought = () if self.summary.capacity is None else (capacity_section(self.summary.capacity),)
        return (self._headline(), *sought, *answered, self._memory(), *self._curves())

    def _headline(self) -> Headline:
        found = self.summary
        cost = self.scenario.cost
        replicas = f"{format_count(found.num_replicas, 'replica')} of {cost.layout.num_devices} {cost.node.device.name}"
        cards = [
            _card("Time to first token", found.ttft_s),
            _card("Time per output token", found.tpot_s),
            Card("Output", format_tokens_rate(found.output_tokens_per_s)),
        ]
        slo = self.scenario.slo
        if slo.ttft is not None or slo.tpot is not None:
            limits = (("first token", slo.ttft), ("output token", slo.tpot))
            asked = ", ".join(f"{words} {format_time(limit)}" for words, limit in limits if limit is not None)
            met = f"{format_percent(found.met_slo_fraction)} met the objective: {asked}"
            cards.append(Card("Goodput", f"{found.goodput_per_s:.2f} requests/s", met))
        return Headline(found.scenario, f"{found.num_requests:,} requests, {replicas}", tuple(cards))

    def _times(self) -> Section:
        found = self.summary
        named = (
            ("to first token", found.ttft_s),
            ("per output token", found.tpot_s),
            ("to last token", found.latency_s),
        )
        rows = [
            (words, *(format_time(value) for value in (times.mean, times.p50, times.p90, times.p99)))
            for words, times in named
            if times is not None
        ]
        return Section("Times of requests", (Table(("time", "mean", "50 %", "90 %", "99 %"), rows),))

    def _waits(self, waits: Waits) -> Section:
        named = (
            ("in the queue", "queue"), ("own prompt", "prefill"), ("preempted", "preempted"),
            ("prompts of others", "stalled"), ("on the way to decode", "moved"), ("decoding", "decode"),
        )  # fmt: skip
        rows = [(words, format_time(getattr(waits, key))) for words, key in named]
        lead = "Mean time of a finished request, from its arrival to its last token."
        return Section("What requests wait for", (Table(("for", "mean"), rows),), lead)

    def _memory(self) -> Section:
        found = self.summary
        rows = [
            ("finished", f"{found.num_finished:,} of {found.num_requests:,}"),
            ("refused, too long for the memory", f"{found.num_refused:,}"),
            ("cancelled", f"{found.num_cancelled:,}"),
            ("preemptions", f"{found.preemptions:,}"),
            ("blocks of a replica", f"{found.kv_blocks:,}"),
            ("most blocks in use", format_percent(found.kv_peak_fraction)),
            ("prompts found in memory", format_percent(found.cached_fraction)),
            ("replicas busy", format_percent(found.busy_fraction)),
        ]
        return Section("Requests and memory", (Table(("what", "number"), rows),))

    def _curves(self) -> list[Section]:
        records, slo = self.served.records, self.scenario.slo
        named = (
            ("ttft", "Time to first token", records.ttft_s(self.served.requests), slo.ttft),
            ("tpot", "Time per output token", records.tpot_s(), slo.tpot),
        )
        sections = []
        for name, words, values, limit in named:
            times = np.sort(values[~np.isnan(values)])
            if len(times):
                sections.append(Section(words, (_rising(name, times, limit),)))
        return sections


def _card(label: str, times: Spread | None) -> Card:
    if times is None:
        return Card(label, "none")
    return Card(label, format_time(times.p50), f"99 %: {format_time(times.p99)}")


def _rising(name: str, times: NDArray[np.float64], limit_s: float | None) -> Lines:
    """Return sorted times by the part of the requests that are at most as slow."""
    places = np.unique(np.linspace(0, len(times) - 1, min(len(times), _MOST_POINTS)).astype(np.int64))
    parts = ((places + 1) / len(times)).tolist()
    unit, unit_s = time_unit(max(limit_s or 0.0, float(times[-1])))
    limit = None if limit_s is None else Limit(limit_s / unit_s, "objective")
    curve = Curve("requests", _COLOUR, parts, (times[places] / unit_s).tolist())
    return Lines(name, (curve,), ("part of the requests", ""), unit, 1.0, limit)
