"""What a search finds with less or more memory, and on a slower or a faster network."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Final

from msgspec.structs import replace

from scenarios.errors import ScenarioError
from scenarios.planning.openings import openings_of
from scenarios.planning.proof import Proof
from scenarios.planning.proving import Prover, done, prove_best, prover
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.searched import Searched
from scenarios.planning.studied import Studied, studied_of
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.summaries.planning import ShiftedPlan
from sim.planner.space import Strategy

_ROOMS: Final = (0.75, 1.25)
_BANDWIDTHS: Final = ("0.5x", "2x")


def sensitivity(of: Searched, best: int, request: Request, resources: Resources) -> Iterator[ShiftedPlan]:
    """Yield the fastest plan under each other condition, beside what the best plan of a search takes there.

    ``best``: its row. The network is left as it is where the scenario describes links, which have no common multiple.
    """
    strategy, known = of.studied.grid.strategy(best), dict(of.tried)
    for times in _ROOMS:
        studied = replace(of.studied, room_bytes=int(of.studied.room_bytes * times))
        ask = _knowing(known, studied.room_bytes, prover(studied, resources))
        yield _shifted(f"memory {times:g}x", studied, strategy, request, ask)
    for text in _BANDWIDTHS:
        try:
            document = apply_overrides(of.studied.openings.document, [f"cluster.network.bandwidth={text}"])
            studied = studied_of(openings_of(document, request.schedules), resources.workers)
        except ScenarioError:
            return
        yield _shifted(f"network bandwidth {text}", studied, strategy, request, prover(studied, resources))


def _knowing(known: Mapping[int, Proof | str], room_bytes: int, ask: Prover) -> Prover:
    """Return what takes the simulations of another room where they hold in this one, and asks for the others."""

    def outcome(row: int) -> Proof | str | None:
        found = known.get(row)
        if isinstance(found, Proof) and found.memory_bytes > room_bytes:
            return Proof(found.memory_bytes)
        return None if isinstance(found, Proof) and found.time_s is None else found

    def asked(row: int, bar_s: float) -> Future[Proof | str]:
        found = outcome(row)
        return ask(row, bar_s) if found is None else done(found)

    return asked


def _shifted(words: str, studied: Studied, kept: Strategy, request: Request, ask: Prover) -> ShiftedPlan:
    """Return the fastest plan under a condition, and what the strategy ``kept`` takes there; intervals of neither."""
    tried = prove_best(studied, "time", request.num_proofs, lambda row, _: ask(row, 0.0))
    fitting = [(found.time_s, row) for row, found in tried if isinstance(found, Proof) and found.time_s is not None]
    time_s, fastest = min(fitting, default=(None, None))
    row = studied.grid.find(kept)
    known = dict(tried)
    of_kept = None if row is None else known[row] if row in known else ask(row, 0.0).result()
    return ShiftedPlan(
        condition=words,
        set={} if fastest is None else studied.values(fastest),
        iteration_time_s=time_s,
        kept_iteration_time_s=of_kept.time_s if isinstance(of_kept, Proof) else None,
    )
