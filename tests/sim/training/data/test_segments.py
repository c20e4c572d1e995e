"""Transformers under aiao: what is synchronised when, and how long a step takes where a closed form says it."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import field
from msgspec.structs import replace

from sim.engine.folding.folding import no_fold
from sim.engine.prices.activity import Activity
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.memory import memory_use
from sim.engine.running.simulate import simulate
from sim.plan.words.buffer import Kind
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op
from sim.plan.words.program import Phase, Plan, Program, Task
from sim.training.errors import SpecError
from sim.training.spec.openings import Opening
from sim.training.spec.parallelism.sharding import ShardingSpec
from sim.training.steps.builder import build_dense_training
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan, open_job, pricing_on


def gradient_collectives(program: Program, kind: CollectiveKind) -> list[tuple[str, Collective, int]]:
    """Return the data-parallel collectives on gradients or parameters with their task and lag, in the order issued."""
    return [
        (call.task, op, call.lag)
        for call in program.calls
        for op in program.tasks[call.task].ops
        if isinstance(op, Collective) and op.kind is kind and op.stream == "dp" and op.writes != ("loss",)
    ]


def elements(program: Program, op: Collective) -> dict[str, set[int]]:
    """Return which elements of which gradients an all_reduce sums."""
    first, end = op.span or (0, 2**62)
    found, start = {}, 0
    for name in op.reads:
        size = program.buffers[name].num_elements
        found[name] = set(range(max(first - start, 0), min(end - start, size)))
        start += size
    return found


@settings(max_examples=examples(8), deadline=None)
@given(
    deferred=st.floats(0.0, 1.0),
    pp=st.sampled_from([1, 2]),
    v=st.sampled_from([1, 2]),
    model=st.sampled_from([GPT, LLAMA]),
)
def test_every_gradient_is_summed_once_over_replicas(
    *, deferred: float, pp: int, v: int, model: dict[str, Any]
) -> None:
    """Each element once, of a rank's first stage in its own step, of the others the stated part in the next one."""
    plan = dense_plan(pp=pp, dp=2, m=2, schedule="aiao", virtual_stages=v, deferred_sync=deferred, model=model)
    for rank, program in enumerate(plan.programs):
        summed: dict[str, list[int]] = {}
        sizes = {0: 0, 1: 0}
        for task, op, lag in gradient_collectives(program, CollectiveKind.ALL_REDUCE):
            for name, part in elements(program, op).items():
                summed.setdefault(name, []).extend(part)
                sizes[lag] += len(part) * (task not in {f"gradient_sync.{rank}", "gradient_sync.tied"})
            assert not (lag and task == f"deferred_sync.{rank}")
        gradients = [b for b in program.buffers.values() if b.kind is Kind.GRADIENT]
        assert {b.name: b.num_elements for b in gradients} == {name: len(set(all_)) for name, all_ in summed.items()}
        assert all(len(set(all_)) == len(all_) for all_ in summed.values())
        later = sum(sizes.values())
        assert abs(sizes[1] - deferred * later) <= v


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_segments_are_updated_right_before_their_forward(zero_stage: int) -> None:
    """Sums and gathers of the step before come first; each later segment is updated and cleared before its forward."""
    deferred = None if zero_stage else 0.25
    plan = dense_plan(pp=2, dp=2, m=3, schedule="aiao", virtual_stages=2, zero_stage=zero_stage, deferred_sync=deferred)
    for rank, program in enumerate(plan.programs):
        tasks = [call.task for call in program.calls]
        own = [rank, rank + 2]
        first_forward = {stage: tasks.index(f"forward.{stage}") for stage in own}
        if zero_stage:
            assert tasks.index(f"deferred_gather.{own[1]}") < first_forward[own[0]]
            assert tasks.index(f"optimizer.{own[1]}") > tasks.index(f"backward.{own[0]}")
        else:
            before = tasks[: first_forward[own[1]]]
            assert before[-2:] == [f"optimizer.{own[1]}", f"zero_gradients.{own[1]}"] or before[-1].startswith("recv_")
            assert tasks.index(f"deferred_sync.{own[1]}") < first_forward[own[0]]
            assert tasks.index(f"optimizer.{own[1]}") > tasks.index(f"forward.{own[0]}")
        order = [task for task in tasks if task.startswith("gradient_sync.") and task != "gradient_sync.tied"]
        assert order == [f"gradient_sync.{stage}" for stage in reversed(own)]


@pytest.mark.parametrize("keys", [{"deferred_sync": 0.5}, {"zero_stage": 1}])
def test_deferring_needs_no_more_memory_than_breadth_first(keys: dict[str, Any]) -> None:
    """Gradients are kept whole by both and updates are in place, so what is deferred costs nothing."""

    def peaks(**keys: Any) -> list[int]:
        plan = dense_plan(pp=2, dp=2, m=3, virtual_stages=2, **keys)
        return [memory_use(program).peak_bytes for program in plan.programs]

    others = {key: value for key, value in keys.items() if key != "deferred_sync"}
    assert peaks(schedule="aiao", **keys) == peaks(schedule="breadth_first", **others)


# --- closed forms ------------------------------------------------------------------------------------------


MARK = "stands for"
"""The attribute of a kernel that stands for its whole task."""


def marked(plan: Plan) -> Plan:
    """Return a plan in which the first kernel of each forward and backward stands for all of it."""

    def mark(task: Task) -> Task:
        if task.phase not in {Phase.FORWARD, Phase.BACKWARD}:
            return task
        first = next(at for at, op in enumerate(task.ops) if isinstance(op, Compute) and op.stream == "compute")
        op = task.ops[first]
        assert isinstance(op, Compute)
        op = replace(op, attributes={**op.attributes, MARK: str(task.phase)})
        return replace(task, ops=(*task.ops[:first], op, *task.ops[first + 1 :]))

    programs = (replace(p, tasks={name: mark(task) for name, task in p.tasks.items()}) for p in plan.programs)
    return replace(plan, programs=tuple(programs))


class EqualStages(TextbookPricing, frozen=True):
    """Each stage's forward, backward and sum of gradients take stated times, whatever they consist of; nothing else.

    A forward or backward takes the time of the op that ``marked`` marks. A part of a stage's gradients takes its part
    of the time.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    sync_s: float = 0.0
    found: dict[int, float] = field(default_factory=dict)

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return an op's part of its task's time."""
        if isinstance(op, Compute):
            stated_s = {None: 0.0, "forward": self.forward_s, "backward": self.backward_s}
            return Activity(stated_s[op.attributes.get(MARK)])
        if not self.found:
            for each in plan.programs:
                self._note(each)
        return Activity(self.found.get(id(op), 0.0))

    def _note(self, program: Program) -> None:
        sums: dict[str, list[Collective]] = {}
        for task in program.tasks.values():
            stage = task.name.rpartition(".")[2]
            if task.phase is Phase.GRADIENT_SYNC and stage.isdigit():
                sums.setdefault(stage, []).extend(op for op in task.ops if op.stream == "dp")
        for parts in sums.values():
            sizes = [_num_elements(program, op) for op in parts]
            self.found.update({id(op): self.sync_s * size / sum(sizes) for op, size in zip(parts, sizes, strict=True)})


def _num_elements(program: Program, op: Op) -> int:
    assert isinstance(op, Collective)
    return sum(program.buffers[n].num_elements for n in op.reads) if op.span is None else op.span[1] - op.span[0]


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    p=st.sampled_from([1, 2, 4]), v=st.sampled_from([1, 2, 4]), more=st.integers(0, 2), forward=st.integers(1, 32),
    backward=st.integers(1, 32), sync=st.integers(1, 400), deferred=st.sampled_from([0.0, 0.25, 1 / 3, 1.0]),
)  # fmt: skip
def test_a_transformers_step_takes_the_time_of_the_closed_form(
    *, p: int, v: int, more: int, forward: int, backward: int, sync: int, deferred: float
) -> None:
    """base + A/v + (v-1) [max(0, xA/v - mb) + max(0, (1-x)A/v - mf)], x in backward, with equal stages and no hop lag.

    base = (m + (P-1)/v)(tF + tB); without deferral breadth-first takes base + max(A/v, A - (v-1) m b).
    """
    m, model = p + more, LLAMA | {"num_layers": p * v, "hidden_size": 32, "ffn_hidden_size": 48, "num_heads": 4}
    f, b, part_s = forward / 16, backward / 16, sync / 16
    keys: dict[str, Any] = {"pp": p, "dp": 2, "m": m, "virtual_stages": v, "model": model}
    base_s = (m * v + p - 1) * (f + b)
    plan = dense_plan(schedule="aiao", deferred_sync=deferred, **keys)
    run = simulate(marked(plan), EqualStages(forward_s=f, backward_s=b, sync_s=part_s), fold=no_fold)
    late_s = max(0.0, (1 - deferred) * part_s - m * b) + max(0.0, deferred * part_s - m * f)
    slack_s = 1e-3 * part_s * v  # a part is a whole number of elements
    assert run.iteration_time_s == pytest.approx(base_s + part_s + (v - 1) * late_s, abs=slack_s)
    plan = dense_plan(schedule="breadth_first", **keys)
    run = simulate(marked(plan), EqualStages(forward_s=f, backward_s=b, sync_s=part_s), fold=no_fold)
    assert run.iteration_time_s == pytest.approx(base_s + max(part_s, v * part_s - (v - 1) * m * b), rel=1e-9)


def test_the_best_part_hides_all_but_the_first_segments_sum() -> None:
    """With x = b/(f+b) everything but A/v is hidden as long as A <= m (tF + tB); other parts hide less."""
    model = LLAMA | {"num_layers": 4}
    keys: dict[str, Any] = {"pp": 2, "dp": 2, "m": 4, "virtual_stages": 2, "schedule": "aiao", "model": model}
    times = {"forward_s": 1.0, "backward_s": 2.0, "sync_s": 4 * 3.0}
    found = {
        deferred: simulate(
            marked(dense_plan(deferred_sync=deferred, **keys)), EqualStages(**times), fold=no_fold
        ).iteration_time_s
        for deferred in (0.0, 0.2, 1 / 3, 0.5, 1.0)
    }
    assert found[1 / 3] == pytest.approx((4 * 2 + 1) * 3.0 + 12.0, rel=1e-4)
    assert min(found.values()) == found[1 / 3]


ONCE = ShardingSpec(gradient_sync="last_microbatch")

# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key", "rule"),
    [
        ({"zero_stage": 1, "deferred_sync": 0.5}, "parallel.data.deferred_sync", "with zero_stage: 1"),
        ({"zero_stage": 2}, "parallel.data.zero_stage", "not built for aiao"),
        ({"zero_stage": 2, "sharding": ONCE}, "parallel.data.zero_stage", "not built for aiao"),
        ({"bucket_bytes": 1000}, "parallel.data.bucket", "no buckets"),
        ({"overlap_gradient_sync": False}, "parallel.data.overlap_gradient_sync", "no blocking"),
        ({"schedule": "1f1b", "virtual_stages": 1, "deferred_sync": 0.5}, "parallel.data.deferred_sync", "only aiao"),
        ({"optimizer_barrier": True}, "parallel.pipeline.optimizer_barrier", "updates every stage on its own"),
    ],
)
def test_what_does_not_go_with_aiao_is_refused(keys: dict[str, Any], key: str, rule: str) -> None:
    """The error names the key that must change."""
    with pytest.raises(SpecError) as refused:
        dense_job(**{"pp": 2, "dp": 2, "m": 2, "schedule": "aiao", "virtual_stages": 2, **keys})
    assert refused.value.key == key
    assert rule in refused.value.rule


def test_a_plan_needs_the_part_that_is_deferred() -> None:
    """Builders know no times, so the part that follows from them must be said."""
    keys = {"pp": 2, "dp": 2, "m": 2, "schedule": "aiao", "virtual_stages": 2}
    assert open_job(**keys).opening is Opening.DEFERRED_SYNC
    with pytest.raises(SpecError, match="a plan needs it decided") as refused:
        dense_job(**keys)
    assert refused.value.key == "parallel.data.deferred_sync"
    alone = dense_job(pp=2, dp=1, m=2, schedule="aiao", virtual_stages=2)
    assert build_dense_training(alone, "one replica")


def test_contention_with_messages_lengthens_the_step() -> None:
    """Gradients and boundary tensors share adapters: together they take longer than the slower of either alone."""
    model = LLAMA | {"hidden_size": 512, "num_heads": 8, "ffn_hidden_size": 1024, "sequence_length": 256}
    keys = {"schedule": "aiao", "virtual_stages": 2, "deferred_sync": 0.33}
    plan = dense_plan(pp=2, dp=2, m=8, b=4, model=model, **keys)
    pricing = pricing_on("dgx-a100-80g", 4, devices_per_node=1)
    assert simulate(plan, pricing).iteration_time_s > simulate(plan, Alone(pricing)).iteration_time_s


@dataclass
class Alone:
    """Another pricing's times, with nothing shared."""

    pricing: Any

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return how long the op lasts alone."""
        activity = self.pricing.price(plan, program, op, rank)
        return Activity(activity.duration_s)

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the other pricing."""
        return getattr(self.pricing, name)
