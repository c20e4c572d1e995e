"""Shorter forms of a plan: with fewer micro-batches, to be simulated in its place where the run repeats itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sim.plan.facts.repetition import Repetition, repetitions, shortened
from sim.plan.words.program import Plan, Program

FEWEST_PERIODS: Final = 6
"""Repetitions that even the shortest form makes, beside those in which a pipeline fills."""

LEFT_OUT: Final = 12
"""Repetitions are left out so many at a time: any period that is looked for fits into them."""

LEAST_SAVED: Final = 3
"""The longest form has no more micro-batches than one in so many of the plan's."""


@dataclass(frozen=True, slots=True)
class Short:
    """A plan whose programs make their repeated calls ``times`` times less.

    ``programs``, ``repetitions``: by identity of the plan's own program.
    """

    times: int
    programs: Mapping[int, Program]
    repetitions: Mapping[int, Repetition]


def short_plans(plan: Plan) -> Iterator[Short]:
    """Yield shorter forms of a plan that repeats itself often enough, each about twice as long as the one before.

    How long a pipeline takes to fill is not known; the first form has the micro-batches that do not repeat once more.
    """
    found = repetitions(plan.programs)
    if found is None:
        return
    num_microbatches = 1 + max(call.microbatch or 0 for program in plan.programs for call in program.calls)
    by, fewest = found[0].microbatches, min(repetition.num_times for repetition in found)
    apart = num_microbatches // by - fewest
    kept = apart + FEWEST_PERIODS
    while LEAST_SAVED * (apart + kept) <= apart + fewest:
        times = (fewest - kept) // LEFT_OUT * LEFT_OUT
        programs = [shortened(program, part, times) for program, part in zip(plan.programs, found, strict=True)]
        short = [program for program in programs if program is not None]
        if len(short) < len(programs):
            return
        keys = [id(program) for program in plan.programs]
        yield Short(
            times,
            dict(zip(keys, short, strict=True)),
            {key: part.without(times) for key, part in zip(keys, found, strict=True)},
        )
        kept = 2 * kept + apart
