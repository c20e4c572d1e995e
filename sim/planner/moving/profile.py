"""What steps with moving experts have in common: the calls of one rank, and what its copies cost beside their rows."""

from collections.abc import Mapping
from functools import cached_property

from msgspec.structs import replace

from sim.engine.prices.pricing import ClusterPricing
from sim.moe.balancing.replicas import shared_out
from sim.moe.sources import Even
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.op import Collective, Compute
from sim.plan.words.program import Phase, Task
from sim.planner.moving.chain import Chain, Span, chain_of
from sim.planner.moving.row_times import RowTimes, first_copy
from sim.training.spec.job import DenseTraining
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.steps.builder import build_dense_training


class StepProfile:
    """The calls and prices that steps share, from the plan of one rank whose experts are all equally busy."""

    def __init__(self, job: DenseTraining, pricing: ClusterPricing) -> None:
        experts = job.model.experts
        assert experts is not None
        self.experts: ExpertsSpec = experts
        self.num_ranks, self.num_layers = job.parallel.expert_degree, job.model.num_expert_layers
        self.pricing = pricing
        fixed = shared_out(self.num_layers, self.num_ranks, experts.num_experts)
        even = replace(experts, routing=Even(), replicas=fixed, moving=None)
        job = replace(job, model=replace(job.model, experts=even))
        self.plan = build_dense_training(job, "profile", first_role=True)
        self.program = self.plan.programs[0]
        self.chain: Chain = chain_of(self.plan, self.program, pricing)

    @cached_property
    def row_bytes(self) -> float:
        """Return the bytes of a row of an exchange."""
        ops = [op for task in self.program.tasks.values() for op in task.ops]
        exchange = next(op for op in ops if isinstance(op, Collective) and op.sizes)
        return self.program.buffers[exchange.reads[0]].num_bytes / sum(exchange.sizes[0])

    @cached_property
    def span_times(self) -> Mapping[tuple[str, ...], tuple[RowTimes, RowTimes]]:
        """Return the times of the kernels on all rows of a rank, and on those of a copy, for each kind of span."""
        spans = {link.kernels: link for link in self.chain.links if isinstance(link, Span)}
        return {
            kernels: (self._timed(span.of_rank), self._timed(first_copy(span.of_copies)))
            for kernels, span in spans.items()
        }

    def _timed(self, ops: "list[Compute] | tuple[Compute, ...]") -> RowTimes:
        return RowTimes(self.plan, self.program, ops, self.pricing)

    @cached_property
    def sums(self) -> tuple[Collective, ...]:
        """Return the sums over all ranks at the end of the step: of buckets of gradients, and last of the loss."""
        tasks = [self.program.tasks[call.task] for call in self.program.calls]
        ops = [op for task in tasks if task.phase is Phase.GRADIENT_SYNC for op in task.ops]
        return tuple(op for op in ops if isinstance(op, Collective))

    @cached_property
    def updates_s(self) -> tuple[tuple[float, ...], float]:
        """Return the seconds of the update of each bucket that all ranks share, and of one expert."""
        shared, of_experts = [], 0.0
        for call in self.program.calls:
            task = self.program.tasks[call.task]
            if task.phase is Phase.OPTIMIZER:
                kernels = [op for op in task.ops if isinstance(op, Compute)]
                seconds = sum(self._seconds(op) for op in kernels)
                if self.program.buffers[kernels[0].reads[0]].part is None:
                    shared.append(seconds)
                else:
                    of_experts += seconds
        return tuple(shared), of_experts / self._num_experts

    @property
    def own_experts(self) -> int:
        """Return the experts of a layer that the rank has."""
        return self.experts.num_experts // self.num_ranks

    @property
    def _num_experts(self) -> int:
        return self.own_experts * self.num_layers

    @cached_property
    def _of_experts(self) -> list[Buffer]:
        return [b for b in self.program.buffers.values() if ".experts." in b.name and ".part" in b.name]

    @cached_property
    def gradient_bytes(self) -> float:
        """Return the bytes of the gradients of an expert."""
        return sum(b.num_bytes for b in self._of_experts if b.kind is Kind.GRADIENT) / self._num_experts

    @cached_property
    def state_bytes(self) -> float:
        """Return the bytes that travel with a copy: weights and optimizer state."""
        kinds = {Kind.PARAMETER, Kind.OPTIMIZER}
        return sum(b.num_bytes for b in self._of_experts if b.kind in kinds) / self._num_experts

    @cached_property
    def clearing_s(self) -> float:
        """Return the seconds to clear the gradients of one expert more, beside others."""
        [op] = [op for op in self.program.tasks["zero_gradients"].ops if isinstance(op, Compute)]
        own = {b.name for b in self._of_experts}
        rest = tuple(name for name in op.writes if name not in own)
        without = replace(op, reads=rest, writes=rest)
        alone = replace(self.program, tasks={"clear": Task("clear", Phase.PREPARE, (without,))})
        rest_s = self.pricing.price(self.plan, alone, without, 0).duration_s
        return (self._seconds(op) - rest_s) / self._num_experts

    def _seconds(self, op: Compute) -> float:
        return self.pricing.price(self.plan, self.program, op, 0).duration_s
