"""Op orders of the pipeline schedules, against torch's own and a written-out example."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from sim.training.pipeline.calls import stage_calls
from sim.training.pipeline.schedules import SCHEDULES, Action, Order, orders
from sim.training.spec import PipelineSpec

SHAPES = [(p, m) for p in range(1, 9) for m in sorted({p, p + 1, p + 3, 2 * p, 3 * p, 4 * p + 1})]
"""(P, m) for one stage per rank; torch refuses 1F1B with m < P."""

INTERLEAVED = [(p, k * p, v) for p in (2, 3, 4, 5, 6, 8) for k in (2, 3, 4, 5) for v in (2, 3, 4, 5)]
"""(P, m, v); with m = P torch warms up less than Megatron-LM, whose rule ours is (see below)."""


@dataclass
class Stage:
    """A pipeline stage that notes what torch's schedule asks of it instead of doing it."""

    group_rank: int
    group_size: int
    stage_index: int
    num_stages: int
    noted: Order = field(default_factory=list)
    has_backward: bool = True
    stage_index_to_group_rank: dict[int, int] = field(default_factory=dict)

    @property
    def is_first(self) -> bool:
        """Return whether it is the first stage."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Return whether it is the last stage."""
        return self.stage_index == self.num_stages - 1

    def no_messages(self, microbatch: int) -> list[Any]:
        """Return no messages: nothing is sent."""
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        """Note a forward."""
        self.noted.append(Action("F", self.stage_index, microbatch))

    def backward_one_chunk(self, microbatch: int, **_: Any) -> None:
        """Note a backward."""
        self.noted.append(Action("B", self.stage_index, microbatch))

    def perform_reduce_grad(self, *_: Any) -> None:
        """Do nothing."""


@pytest.fixture(scope="module")
def torch_schedules() -> Any:
    """Return torch's schedules; skip where torch is absent."""
    return pytest.importorskip("torch.distributed.pipelining.schedules", reason="torch is not installed")


def run_by_torch(schedule_class: Any, p: int, m: int) -> list[Order]:
    """Return what torch's schedule of one stage per rank runs on every rank, in order."""
    found = []
    for rank in range(p):
        stage = Stage(rank, p, rank, p)
        schedule = schedule_class(stage, m)
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches()
        found.append(stage.noted)
    return found


def planned_by_torch(schedules: Any, p: int, m: int, v: int) -> list[Order]:
    """Return the order that torch's interleaved schedule lays down for its runtime, per rank."""
    schedule = schedules.ScheduleInterleaved1F1B([Stage(0, p, chunk * p, p * v) for chunk in range(v)], m)
    kinds = {schedules.FORWARD: "F", schedules.FULL_BACKWARD: "B"}
    return [
        [
            Action(kinds[action.computation_type], action.stage_index, action.microbatch_index)
            for action in schedule.pipeline_order[rank]
            if action is not None and action.computation_type in kinds
        ]
        for rank in range(p)
    ]


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_1f1b_order_equals_torchs(torch_schedules: Any, p: int, m: int) -> None:
    """Every rank runs 1F1B's forwards and backwards in the order of torch's Schedule1F1B."""
    assert SCHEDULES["1f1b"](p, m, 1) == run_by_torch(torch_schedules.Schedule1F1B, p, m)


@pytest.mark.parametrize(("p", "m", "v"), INTERLEAVED)
def test_interleaved_order_equals_torchs(torch_schedules: Any, p: int, m: int, v: int) -> None:
    """Every rank runs the interleaved order of torch's ScheduleInterleaved1F1B."""
    assert SCHEDULES["interleaved_1f1b"](p, m, v) == planned_by_torch(torch_schedules, p, m, v)


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (4, 3), (8, 2)])
def test_interleaved_starts_with_all_forwards_where_m_equals_p(torch_schedules: Any, p: int, v: int) -> None:
    """With m = P Megatron-LM warms up with all forwards; torch does not, but orders forwards and backwards alike."""
    ours, theirs = SCHEDULES["interleaved_1f1b"](p, p, v), planned_by_torch(torch_schedules, p, p, v)
    for mine, its in zip(ours, theirs, strict=True):
        assert [a.kind for a in mine] == ["F"] * p * v + ["B"] * p * v
        for kind in "FB":
            assert [a for a in mine if a.kind == kind] == [a for a in its if a.kind == kind]


def test_enough_shapes_are_compared_with_torch() -> None:
    """At least 100 (P, m, v) are compared."""
    assert len(SHAPES) * 2 + len(INTERLEAVED) >= 100
    assert len(INTERLEAVED) >= 90


@pytest.mark.parametrize(
    ("rank", "order"),
    [
        (0, "F0@0 F1@0 F0@2 F1@2 F2@0 B0@2 F3@0 B1@2 F2@2 B0@0 F3@2 B1@0 B2@2 B3@2 B2@0 B3@0"),
        (1, "F0@1 F1@1 F0@3 B0@3 F1@3 B1@3 F2@1 B0@1 F3@1 B1@1 F2@3 B2@3 F3@3 B3@3 B2@1 B3@1"),
    ],
)
def test_interleaved_order_equals_the_written_out_example(rank: int, order: str) -> None:
    """P=2, m=4, v=2 as written out in the reference."""
    found = SCHEDULES["interleaved_1f1b"](2, 4, 2)[rank]
    assert " ".join(f"{a.kind}{a.microbatch}@{a.stage}" for a in found) == order


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (3, 6, 4), (4, 8, 2), (5, 5, 3)])
def test_every_rank_runs_each_chunk_forward_then_backward_once(schedule: str, p: int, m: int, v: int) -> None:
    """All mv chunks of a rank run forward and backward exactly once, backward after forward."""
    v = v if schedule == "interleaved_1f1b" else 1
    pipeline = PipelineSpec(degree=p, schedule=schedule, virtual_stages=v)  # type: ignore[arg-type]
    for rank, order in enumerate(orders(pipeline, m)):
        chunks = {(stage, i) for stage in range(rank, p * v, p) for i in range(m)}
        position = {action: k for k, action in enumerate(order)}
        assert len(order) == len(position) == 2 * len(chunks)
        assert all(position[Action("F", *chunk)] < position[Action("B", *chunk)] for chunk in chunks)


def test_stage_calls_put_messages_around_the_work() -> None:
    """A middle stage receives, runs and sends; the ends lack what has no neighbour; one rank sends nothing."""
    order = [Action("F", 1, 0), Action("B", 1, 0)]
    names = ["recv_forward.1", "forward.1", "send_forward.1", "recv_backward.1", "backward.1", "send_backward.1"]
    assert [call.task for call in stage_calls(order, 3, 3)] == names
    first = stage_calls([Action("F", 0, 0), Action("B", 0, 0)], 2, 2)
    assert [call.task for call in first] == ["forward.0", "send_forward.0", "recv_backward.0", "backward.0"]
    assert [call.task for call in stage_calls(order, 1, 2)] == ["forward.1", "backward.1"]


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_gpipe_order_equals_torchs(torch_schedules: Any, p: int, m: int) -> None:
    """Every rank runs what torch's ScheduleGPipe runs, in its order."""
    for mine, its in zip(SCHEDULES["gpipe"](p, m, 1), run_by_torch(torch_schedules.ScheduleGPipe, p, m), strict=True):
        assert mine[:m] == its[:m]
        assert mine[m:] == its[m:]
