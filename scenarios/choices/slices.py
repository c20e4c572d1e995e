"""The choice of token slices, if the scenario leaves it open: the fastest slicing.

The dynamic program of Li et al. 2021 (``sim.training.pipeline.terapipe``) finds it. Its costs are the times of a stage
in the middle of the pipeline for a slice after its context: forward and backward alone and, as in the paper, the
messages in both directions, the mean over the pipeline's hops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import lcm
from statistics import fmean
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from scenarios.choices.first_plan import one_microbatch
from sim.engine.findings.alone import tasks_alone_s
from sim.engine.prices.activity import Pricing
from sim.plan.words.op import Collective, Op
from sim.plan.words.program import Phase, Plan, Program, Task
from sim.training.errors import SpecError
from sim.training.pipeline.rules import GRANULARITY_KEY
from sim.training.pipeline.terapipe import Slicing, best_slices
from sim.training.spec.job import DenseTraining, OpenTraining
from sim.training.steps.builder import build_dense_training

MAX_UNITS: Final = 512
"""Of the granularity in a sequence."""
_USUAL_UNITS: Final = 128
_USUAL_GRANULARITY: Final = 8
"""Tokens: a size that suits tensor cores, and the granularity of the paper's implementation."""
_LIMIT_STEP: Final = 5e-4
"""How close, as a fraction of a whole sequence's time, the limits on slice times lie that are tried."""


def with_best_slices(job: OpenTraining, pricing: Pricing) -> DenseTraining:
    """Return a job with the slices that are fastest at these prices (``best_slicing``)."""
    return with_slices(job, best_slicing(job, pricing)[0].slices)


def best_slicing(job: OpenTraining, pricing: Pricing) -> tuple[Slicing, float]:
    """Return the fastest slices at these prices, and the seconds of a whole sequence on a stage.

    They are multiples of the job's granularity, or where it states none, of 1/128 of the sequence or a little more, 8
    or more.
    Raises SpecError for a granularity that does not divide the sequence, or divides it into too many parts.
    """
    tokens, multiple = job.model.sequence_length, job.parallel.token_multiple
    unit = job.parallel.pipeline.slice_granularity or _usual_granularity(tokens, multiple)
    if tokens % unit or unit % multiple or tokens // unit > MAX_UNITS:
        needs = f"a multiple of {multiple}, " if multiple > 1 else ""
        rule = f"lengths in multiples of {unit} tokens do not cut {tokens} tokens into {MAX_UNITS} parts or fewer"
        remedy = f"write a divisor of {tokens}, {needs}{-(-tokens // MAX_UNITS)} or more; or state token_slices"
        raise SpecError(GRANULARITY_KEY, rule, remedy)
    times = _SliceTimes(job, pricing, unit)
    whole_s = times.time_s(tokens, 0)
    found = best_slices(
        times.time_s, tokens, job.parallel.pipeline.degree, granularity=unit,
        num_sequences=job.num_microbatches, epsilon_s=_LIMIT_STEP * whole_s,
    )  # fmt: skip
    return found, whole_s


def with_slices(job: OpenTraining, slices: Sequence[int]) -> DenseTraining:
    """Return a job with these slices."""
    pipeline = replace(job.parallel.pipeline, token_slices=tuple(slices), slice_granularity=0)
    return job.decided(replace(job.parallel, pipeline=pipeline))


def _usual_granularity(num_tokens: int, multiple: int) -> int:
    step = lcm(multiple, _USUAL_GRANULARITY) if num_tokens % lcm(multiple, _USUAL_GRANULARITY) == 0 else multiple
    candidates = range(step, num_tokens + 1, step)
    return next((n for n in candidates if num_tokens % n == 0 and num_tokens // n <= _USUAL_UNITS), num_tokens)


@dataclass
class _SliceTimes:
    """What a stage takes for a slice.

    Each length is priced after no context, half and all of what there can be; in between, lines are drawn: all that
    depends on the context is attention, whose work is linear in it.
    """

    job: OpenTraining
    pricing: Pricing
    unit: int
    _priced: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict)

    def time_s(self, tokens: int, context: int) -> float:
        """Return seconds, forward and backward and messages."""
        if tokens not in self._priced:
            self._priced[tokens] = self._price(tokens)
        return float(np.interp(context, *self._priced[tokens])) + self._hop_s(tokens)

    def _price(self, tokens: int) -> tuple[list[int], list[float]]:
        last = self.job.model.sequence_length - tokens
        middle = last // 2 // self.unit * self.unit
        if tokens <= min(middle, last - middle):
            plans = [[0, middle, last]]
        elif tokens <= last:
            plans = [[0, last]]
        else:  # the first slice and the last one overlap
            plans = [[0], [last]] if last else [[0]]
        priced = [self._price_together(tokens, contexts) for contexts in plans]
        return [context for contexts in plans for context in contexts], [s for found in priced for s in found]

    def _price_together(self, tokens: int, contexts: Sequence[int]) -> list[float]:
        """Return the seconds of slices of one plan."""
        edges = sorted({0, self.job.model.sequence_length, *contexts, *(c + tokens for c in contexts)})
        plan = self._probe([b - a for a, b in pairwise(edges)])
        of_slices = [_passes_of(plan.programs[0], edges.index(context)) for context in contexts]
        wanted = {name for names in of_slices for name in names}
        times_s = tasks_alone_s(plan, self.pricing, lambda task: task.name in wanted)
        return [sum(times_s[name] for name in names) for names in of_slices]

    def _probe(self, slices: Sequence[int]) -> Plan:
        """Return one micro-batch's plan of the rank in the middle of the pipeline."""
        job = one_microbatch(with_slices(self.job, slices))
        return build_dense_training(job, "slice times", only=job.parallel.pipeline.degree // 2)

    def _hop_s(self, tokens: int) -> float:
        """Return what a slice's messages take, there and back, with those of the stage's other ranks beside them."""
        fixed_s, per_token_s = self._hop
        return fixed_s + per_token_s * tokens

    @cached_property
    def _hop(self) -> tuple[float, float]:
        """Return the part of messages' time that is fixed, and that per token."""
        total, unit = self.job.model.sequence_length, self.unit
        if self.job.parallel.pipeline.degree == 1 or unit == total:
            return 0.0, 0.0
        plan = self._probe([unit, total - unit])
        small, large = (self._mean_hop_s(plan, index) for index in range(2))
        if total == 2 * unit:
            return 0.0, small / unit
        per_token_s = (large - small) / (total - 2 * unit)
        return small - per_token_s * unit, per_token_s

    def _mean_hop_s(self, plan: Plan, index: int) -> float:
        """Return the mean over the pipeline's hops of a slice's message, twice: back and forth."""
        program, pipeline = plan.programs[0], self.job.parallel.pipeline
        op = next(task.ops[0] for task in _tasks_of(program, index) if task.phase is Phase.SEND)
        ranks = plan.ranks_of(program)
        first = 0 if "forward" in op.name else 1
        stages = range(first, pipeline.degree - 1 + first)
        return 2.0 * fmean(self._stage_hop_s(plan, op, ranks, stage) for stage in stages)

    def _stage_hop_s(self, plan: Plan, op: Op, ranks: Sequence[int], stage: int) -> float:
        """Return what a message from a stage takes when all its ranks send at once."""
        program, latency_s = plan.programs[0], 0.0
        if isinstance(op, Collective):
            op = replace(op, members=(stage - op.root, stage - op.root + 1))
        used: dict[Any, float] = {}
        for rank in ranks:
            ahead = stage - plan.mesh.coordinate(rank, "pp")
            activity = self.pricing.price(plan, program, op, plan.mesh.shift(rank, "pp", ahead))
            latency_s = max(latency_s, activity.latency_s)
            for link, seconds in activity.demands:
                used[link] = used.get(link, 0.0) + seconds
        return latency_s + max(used.values(), default=0.0)


def _passes_of(program: Program, index: int) -> list[str]:
    """Return the names of a slice's forwards and backwards."""
    return [task.name for task in _tasks_of(program, index) if task.phase in {Phase.FORWARD, Phase.BACKWARD}]


def _tasks_of(program: Program, index: int) -> list[Task]:
    """Return the tasks of a slice; of a sequence that is not sliced, all."""
    return [task for name, task in program.tasks.items() if "@" not in name or name.endswith(f"@{index}")]
