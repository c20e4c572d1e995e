"""Into which slices of tokens a scenario's sequences are cut: as stated, evenly, or as is fastest.

The fastest are those of the dynamic program of Li et al. 2021 (``sim.training.pipeline.terapipe``), for what a stage in
the middle of the pipeline takes for a slice after its context: its forward and its backward alone, priced op by op with
their overlaps, and, as in the paper, the messages of both ways, the mean over the pipeline's hops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import lcm
from statistics import fmean
from typing import Any, Final

import numpy as np

from sim.engine.pricing import ClusterPricing
from sim.engine.shape import analyse
from sim.plan.op import Collective, Op
from sim.plan.program import Phase, Plan, Program, Task
from sim.training.builder import build_dense_training
from sim.training.errors import SpecError
from sim.training.pipeline.rules import SLICES_KEY
from sim.training.pipeline.terapipe import best_slices
from sim.training.spec import DenseTraining, ParallelSpec

GRANULARITY_KEY: Final = "parallel.pipeline.slice_granularity"
MAX_UNITS: Final = 512
"""Of the granularity in a sequence."""
_USUAL_UNITS: Final = 128
_USUAL_GRANULARITY: Final = 8
"""Tokens: what tensor cores like, and what the paper's implementation takes."""
_LIMIT_STEP: Final = 5e-4
"""How close, as a fraction of a whole sequence's time, the limits on slice times lie that are tried."""


def stated_slices(value: int | Sequence[int], num_tokens: int, multiple: int = 1) -> tuple[int, ...]:
    """Return the lengths of slices: those stated, or of a number of slices of ``num_tokens`` tokens.

    Where they do not come out even in multiples of ``multiple`` tokens, the first ones are longer.
    Raises SpecError where there are more slices than multiples.
    """
    if not isinstance(value, int):
        return tuple(value)
    units = num_tokens // multiple
    if value > units or num_tokens % multiple:
        rule = f"{num_tokens} tokens do not make {value} slices" + (f" of multiples of {multiple}" * (multiple > 1))
        raise SpecError(SLICES_KEY, rule, f"write a number of 1 to {units}")
    length, longer = divmod(units, value)
    return tuple((length + (i < longer)) * multiple for i in range(value))


def slice_multiple(parallel: ParallelSpec) -> int:
    """Return what the lengths of slices must be multiples of: tokens that tensor-parallel ranks share out."""
    shared = parallel.sequence_parallel or parallel.pipeline.scatter_gather
    return parallel.tensor_degree if shared else 1


def with_best_slices(job: DenseTraining, granularity: int | None, pricing: ClusterPricing) -> DenseTraining:
    """Return a job with the slices that are fastest at these prices, in multiples of ``granularity`` tokens.

    None: 1/128 of the sequence or a little more, 8 or more.
    Raises SpecError for a granularity that does not divide the sequence, or divides it into too many parts.
    """
    tokens, multiple = job.model.sequence_length, slice_multiple(job.parallel)
    unit = _usual_granularity(tokens, multiple) if granularity is None else granularity
    if tokens % unit or unit % multiple or tokens // unit > MAX_UNITS:
        needs = f"a multiple of {multiple}, " if multiple > 1 else ""
        rule = f"lengths in multiples of {unit} tokens do not cut {tokens} tokens into {MAX_UNITS} parts or fewer"
        remedy = f"write a divisor of {tokens}, {needs}{-(-tokens // MAX_UNITS)} or more; or state token_slices"
        raise SpecError(GRANULARITY_KEY, rule, remedy)
    times = _SliceTimes(job, pricing, unit)
    found = best_slices(
        times.time_s, tokens, job.parallel.pipeline.degree, granularity=unit,
        num_sequences=job.num_microbatches, epsilon_s=_LIMIT_STEP * times.time_s(tokens, 0),
    )  # fmt: skip
    return with_slices(job, found.groups[0].slices)


def with_slices(job: DenseTraining, slices: Sequence[int]) -> DenseTraining:
    """Return a job with these slices."""
    pipeline = replace(job.parallel.pipeline, token_slices=tuple(slices))
    return replace(job, parallel=replace(job.parallel, pipeline=pipeline))


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

    job: DenseTraining
    pricing: ClusterPricing
    unit: int
    _priced: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict)

    def time_s(self, tokens: int, context: int) -> float:
        """Return seconds, forward and backward and messages."""
        if tokens not in self._priced:
            self._priced[tokens] = self._price(tokens)
        return float(np.interp(context, *self._priced[tokens])) + self._hop_s(tokens)

    def _price(self, tokens: int) -> tuple[list[int], list[float]]:
        total = self.job.model.sequence_length
        contexts = sorted({0, (total - tokens) // 2 // self.unit * self.unit, total - tokens})
        contexts = [c for i, c in enumerate(contexts) if i == 0 or c - contexts[i - 1] >= tokens]
        edges = sorted({0, total, *contexts, *(c + tokens for c in contexts)})
        plan = self._probe([b - a for a, b in pairwise(edges)])
        program = plan.programs[0]
        return contexts, [self._alone_s(plan, program, edges.index(context)) for context in contexts]

    def _probe(self, slices: Sequence[int]) -> Plan:
        """Return one micro-batch's plan of the rank in the middle of the pipeline."""
        job = with_slices(self.job, slices)
        once = job.training.microbatch_size * job.parallel.data_degree
        job = replace(job, training=replace(job.training, global_batch_size=once))
        return build_dense_training(job, "slice times", only=job.parallel.pipeline.degree // 2)

    def _alone_s(self, plan: Plan, program: Program, index: int) -> float:
        """Return what the forward and the backward of one slice take, nothing else running."""
        rank = plan.ranks_of(program)[0]
        return sum(
            _longest_path_s(task, [self.pricing.price(plan, program, op, rank).duration_s for op in task.ops])
            for task in _tasks_of(program, index)
            if task.phase in (Phase.FORWARD, Phase.BACKWARD)
        )

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


def _tasks_of(program: Program, index: int) -> list[Task]:
    """Return the tasks of a slice; of a sequence that is not sliced, all."""
    return [task for name, task in program.tasks.items() if "@" not in name or name.endswith(f"@{index}")]


def _longest_path_s(task: Task, durations_s: Sequence[float]) -> float:
    """Return how long a task lasts alone."""
    ends: list[float] = []
    for predecessors, duration_s in zip(analyse(task).predecessors, durations_s, strict=True):
        ends.append(max((ends[i] for i in predecessors), default=0.0) + duration_s)
    return max(ends)
