"""The part of the page on a timed step: what it waits for, and its timeline."""

from costmodels.units import format_bytes, format_count, format_percent, format_time
from scenarios.report.blocks import Card, Only, Section, Table
from scenarios.report.blocks import Timeline as TimelineBlock
from scenarios.report.causes import COMPUTING, cause_of
from scenarios.report.charts.gantt import choose_bars
from scenarios.workloads.recommendation.server_time import ServerTimes
from scenarios.workloads.recommendation.step_time import StepTimeSummary
from sim.engine.findings.breakdown import BUBBLE
from sim.plan.words.stream import Purpose, stream_of
from traces.timeline import Timeline


def step_cards(found: StepTimeSummary) -> tuple[Card, ...]:
    """Return the time of the step, its rate, and whether it fits."""
    peak, host = format_bytes(found.peak_memory_bytes), format_bytes(found.host_memory_bytes)
    capacity = f"of {format_bytes(found.memory_capacity_bytes)}"
    fits = (
        Card("Memory", peak, f"{capacity}: fits; on the host {host}")
        if found.fits_memory
        else Card("Memory", "does not fit", f"{peak} {capacity}", "bad")
    )
    rate = f"{found.samples_per_s:,.0f} samples/s"
    return (
        Card("Time per step", format_time(found.iteration_time_s), format_count(found.num_ranks, "device")),
        Card("Throughput", rate),
        fits,
    )


def step_sections(found: StepTimeSummary, timeline: Timeline | None) -> tuple[Section, ...]:
    """Return what the mean rank does and waits for, the longest chain of ops, and the timeline."""
    total_s = found.iteration_time_s
    spent = [(COMPUTING[0], found.computing_s), *((_words(c), s) for c, s in found.waiting_s.items())]
    rows = [(words, format_time(s), format_percent(s / total_s)) for words, s in sorted(spent, key=lambda x: -x[1])]
    path = [(kind, format_time(s), format_percent(s / total_s)) for kind, s in found.critical_path_s.items() if s > 0]
    lead = f"Of batch {found.batch:,}, that in the middle by its moved rows."
    lead += " Waiting is named after what is busy meanwhile."
    spending = Table(("what a rank does, or waits for", "time", "of the step"), rows)
    chain = Table(("on the longest chain of ops", "time", "of the step"), path)
    sections = (
        Section("What the step spends its time on", (spending,), lead),
        Section("What the step waits for in the end", (chain,)),
    )
    if timeline is None:
        return sections
    bars = Only("page", (TimelineBlock("step", choose_bars(timeline)),))
    return (*sections, Section("Timeline of the step", (bars,), "Computing above, copies and communication below."))


def worker_cards(found: ServerTimes, num_workers: int) -> tuple[Card, ...]:
    """Return the time of the step of workers with parameter servers, and their rate together."""
    return (
        Card("Time per step", format_time(found.step_s), f"{format_count(num_workers, 'worker')}, the mean"),
        Card("Throughput", f"{found.samples_per_s:,.0f} samples/s"),
    )


def worker_sections(found: ServerTimes) -> tuple[Section, ...]:
    """Return the times of workers with parameter servers, and those of workers without a cache."""
    waiting_s = max(found.step_s - found.pull_s - found.local_s - found.push_s, 0.0)
    parts = [
        ("rows asked for and pulled", found.pull_s),
        ("own part: rows to the device, layers, gradients to the host", found.local_s),
        ("rows pushed; all gradients of layers awaited and summed", found.push_s),
        ("waiting for other workers", waiting_s),
        ("step", found.step_s),
    ]
    others = [
        ("without a cache", found.uncached_step_s),
        ("without a cache, and layers on the servers", found.uncached_servers_step_s),
    ]
    rows = [(words, format_time(s), format_percent(s / found.step_s)) for words, s in parts]
    beside = [(words, format_time(s), f"{s / found.step_s:.2f} times as long") for words, s in others]
    return (
        Section("Time of a step", (Table(("what the mean worker does", "time", "of the step"), rows),)),
        Section("Steps without a cache", (Table(("workers", "step", "beside the one with it"), beside),)),
    )


def _words(cause: str) -> str:
    """Return a cause of waiting in words."""
    if cause == BUBBLE:
        return "nothing of the rank runs"
    purpose = stream_of(cause).purpose
    return "rows gathered and scattered on the host" if purpose is Purpose.HOST else cause_of(cause)[0]
