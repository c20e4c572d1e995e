"""Op orders of the pipeline schedules, against torch's own and a written-out example."""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.plan.words.program import Call
from sim.training.pipeline.actions import Action, parse_orders, steps
from sim.training.pipeline.calls import pipeline_calls
from sim.training.pipeline.evaluate import StageTimes, end_times, max_span_s
from sim.training.pipeline.greedy import Limit, zb_auto
from sim.training.pipeline.placement import Placement, bidirectional, loop, v_shape
from sim.training.pipeline.schedules import SCHEDULES, interleaved, orders, placement
from sim.training.spec.job import PipelineSpec
from tests.examples import examples

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
    noted: list[Action] = field(default_factory=list)
    has_backward: bool = True
    stage_index_to_group_rank: dict[int, int] = field(default_factory=dict)
    submod: None = None

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


def run_by_torch(schedule_class: Any, p: int, m: int) -> list[list[Action]]:
    """Return what torch's schedule of one stage per rank runs on every rank, in order."""
    found = []
    for rank in range(p):
        stage = Stage(rank, p, rank, p)
        schedule = schedule_class(stage, m)
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches()
        found.append(stage.noted)
    return found


def planned_by_torch(schedule_class: Any, p: int, m: int, v: int, *, is_v: bool = False) -> list[list[Action]]:
    """Return the order that torch's schedule of several stages per rank lays down for its runtime, per rank."""
    stages = [0, 2 * p - 1] if is_v else [chunk * p for chunk in range(v)]
    schedule = schedule_class([Stage(0, p, stage, p * v) for stage in stages], m)
    text = "".join(",".join(str(action or "") for action in schedule.pipeline_order[rank]) + "\n" for rank in range(p))
    return parse_orders(text)


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_1f1b_order_equals_torchs(torch_schedules: Any, p: int, m: int) -> None:
    """Every rank runs 1F1B's forwards and backwards in the order of torch's Schedule1F1B."""
    assert SCHEDULES["1f1b"](p, m, 1) == run_by_torch(torch_schedules.Schedule1F1B, p, m)


@pytest.mark.parametrize(("p", "m", "v"), INTERLEAVED)
def test_interleaved_order_equals_torchs(torch_schedules: Any, p: int, m: int, v: int) -> None:
    """Every rank runs the interleaved order of torch's ScheduleInterleaved1F1B."""
    assert SCHEDULES["interleaved_1f1b"](p, m, v) == planned_by_torch(torch_schedules.ScheduleInterleaved1F1B, p, m, v)


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (4, 3), (8, 2)])
def test_interleaved_starts_with_all_forwards_where_m_equals_p(torch_schedules: Any, p: int, v: int) -> None:
    """With m = P Megatron-LM warms up with all forwards; torch does not, but orders forwards and backwards alike."""
    ours, theirs = (
        SCHEDULES["interleaved_1f1b"](p, p, v),
        planned_by_torch(torch_schedules.ScheduleInterleaved1F1B, p, p, v),
    )
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


ONE_STAGE = [(2, 4, 1), (4, 8, 1), (6, 12, 1), (4, 16, 1)]
SEVERAL_STAGES = [(2, 2, 2), (3, 6, 4), (4, 8, 2), (5, 5, 3)]
TWO_STAGES = [(1, 2, 2), (2, 5, 2), (3, 6, 2), (4, 9, 2)]
SHAPES_OF = {
    "gpipe": ONE_STAGE, "1f1b": ONE_STAGE, "interleaved_1f1b": SEVERAL_STAGES,
    "breadth_first": ONE_STAGE + SEVERAL_STAGES, "aiao": ONE_STAGE + SEVERAL_STAGES,
    "zb_h1": ONE_STAGE + SEVERAL_STAGES, "zb_h2": ONE_STAGE, "zb_v": TWO_STAGES,
    "chimera": ONE_STAGE, "dualpipe": ONE_STAGE, "dualpipe_v": TWO_STAGES,
}  # fmt: skip


@pytest.mark.parametrize(("schedule", "shape"), [(name, shape) for name in SHAPES_OF for shape in SHAPES_OF[name]])
def test_every_rank_runs_each_chunk_forward_then_backward_once(schedule: Any, shape: tuple[int, int, int]) -> None:
    """Every micro-batch runs through one copy of the model: forward once, then backward once, whole or in two parts."""
    p, m, v = shape
    pipeline = PipelineSpec(degree=p, schedule=schedule, virtual_stages=v)
    place, kinds = placement(pipeline), {}
    for rank, order in enumerate(orders(pipeline, m)):
        for action in order:
            assert place.ranks[action.stage] == rank
            chunk = (action.stage, action.microbatch)
            kinds[chunk] = kinds.get(chunk, "") + action.kind
    assert set(kinds.values()) <= {"FB", "FIW"}
    copies = {i: {place.copy_of(stage) for stage, j in kinds if j == i} for i in range(m)}
    assert all(len(found) == 1 for found in copies.values())
    assert len(kinds) == m * place.chain_length


def test_calls_put_messages_around_the_work() -> None:
    """A middle stage receives, runs and sends; the ends lack what has no neighbour; one rank sends nothing."""
    calls = [[call.task for call in of_rank] for of_rank in pipeline_calls(SCHEDULES["1f1b"](3, 1, 1), loop(3))]
    middle = ["recv_forward.1", "forward.1", "send_forward.1", "recv_backward.1", "backward.1", "send_backward.1"]
    assert calls[0] == ["forward.0", "send_forward.0", "recv_backward.0", "backward.0"]
    assert calls[1] == middle
    assert calls[2] == ["recv_forward.2", "forward.2", "backward.2", "send_backward.2"]
    alone = pipeline_calls(SCHEDULES["breadth_first"](1, 1, 2), loop(1, 2))
    assert [call.task for call in alone[0]] == ["forward.0", "forward.1", "backward.1", "backward.0"]


def test_receives_come_in_the_order_of_the_sends() -> None:
    """A rank that needs messages in another order than they are sent receives the earlier ones early."""
    sender = [Action("F", 0, 0), Action("F", 0, 1)]
    receiver = [Action("F", 1, 1), Action("F", 1, 0)]
    _, calls = pipeline_calls([sender, receiver], Placement(2, (0, 1)))
    assert [(call.task, call.microbatch) for call in calls] == [
        ("recv_forward.1", 0), ("recv_forward.1", 1), ("forward.1", 1), ("forward.1", 0),
    ]  # fmt: skip


@settings(max_examples=examples(30), deadline=None)
@given(sent=st.permutations(range(8)), needed=st.permutations(range(8)), backwards=st.permutations(range(8)))
def test_a_receive_comes_when_a_later_message_or_its_own_is_needed(
    sent: list[int], needed: list[int], backwards: list[int]
) -> None:
    """Whatever the orders of two ranks, receives follow the sends, and none is posted before its stream needs it."""
    orders = [
        [Action("F", 0, i) for i in sent] + [Action("B", 0, i) for i in backwards],
        [Action("F", 1, i) for i in needed] + [Action("B", 1, i) for i in backwards],
    ]
    sender, receiver = pipeline_calls(orders, loop(2))
    assert [call for call in receiver if call.task == "send_backward.1"] == [
        Call("send_backward.1", i) for i in backwards
    ]
    assert [call.microbatch for call in sender if call.task == "send_forward.0"] == sent
    expected, received = list[Call](), 0
    for i in needed:
        latest = 1 + sent.index(i)
        expected += [Call("recv_forward.1", early) for early in sent[received:latest]]
        expected.append(Call("forward.1", i))
        received = max(received, latest)
    assert [call for call in receiver if call.task in ("recv_forward.1", "forward.1")] == expected


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_gpipe_order_equals_torchs(torch_schedules: Any, p: int, m: int) -> None:
    """Every rank runs what torch's ScheduleGPipe runs, in its order."""
    for mine, its in zip(SCHEDULES["gpipe"](p, m, 1), run_by_torch(torch_schedules.ScheduleGPipe, p, m), strict=True):
        assert mine[:m] == its[:m]
        assert mine[m:] == its[m:]


# --- further schedules of torch ----------------------------------------------------------------------------

LOOPS = [(p, m, v) for p in (1, 2, 3, 4, 6) for m in (1, 2, 4, 6, 7, 12) for v in (1, 2, 3)]
ROUNDS = [(p, m, v) for p, m, v in LOOPS if m >= p and m % max(1, m // p) == 0]
FOLDED = [(p, m) for p in (1, 2, 3, 4, 6, 8) for m in (1, 2, 3, 5, 8, 11, 15, 16, 20)]


@pytest.mark.parametrize(("p", "m", "v"), LOOPS)
def test_breadth_first_order_equals_torchs(torch_schedules: Any, p: int, m: int, v: int) -> None:
    """Every rank runs what torch's ScheduleLoopedBFS runs; Fold3D's order is the same."""
    expected = planned_by_torch(torch_schedules.ScheduleLoopedBFS, p, m, v)
    assert SCHEDULES["breadth_first"](p, m, v) == SCHEDULES["aiao"](p, m, v) == expected


@pytest.mark.parametrize(("p", "m", "v"), ROUNDS)
def test_zb_h1_order_equals_torchs(torch_schedules: Any, p: int, m: int, v: int) -> None:
    """Every rank runs what torch's ScheduleInterleavedZeroBubble runs, with one stage per rank or several."""
    expected = planned_by_torch(torch_schedules.ScheduleInterleavedZeroBubble, p, m, v)
    assert SCHEDULES["zb_h1"](p, m, v) == expected


@pytest.mark.parametrize(("p", "m"), FOLDED)
def test_zb_v_order_equals_torchs(torch_schedules: Any, p: int, m: int) -> None:
    """Every rank runs what torch's ScheduleZBVZeroBubble runs, also with too few micro-batches for it."""
    assert SCHEDULES["zb_v"](p, m, 2) == planned_by_torch(torch_schedules.ScheduleZBVZeroBubble, p, m, 2, is_v=True)


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in FOLDED if m >= 2 * p])
def test_dualpipe_v_order_equals_torchs(torch_schedules: Any, p: int, m: int) -> None:
    """Every rank runs what torch's ScheduleDualPipeV runs, with the same actions overlapping."""
    assert SCHEDULES["dualpipe_v"](p, m, 2) == planned_by_torch(torch_schedules.ScheduleDualPipeV, p, m, 2, is_v=True)


# --- written-out examples ----------------------------------------------------------------------------------

WRITTEN_OUT = {
    ("breadth_first", 2, 4, 2): [
        "0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 2B3 2B2 2B1 2B0 0B3 0B2 0B1 0B0",
        "1F0 1F1 1F2 1F3 3F0 3F1 3F2 3F3 3B3 3B2 3B1 3B0 1B3 1B2 1B1 1B0",
    ],
    ("zb_h1", 4, 6, 1): [
        "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5",
        "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1I4 1W3 1I5 1W4 1W5",
        "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2I5 2W3 2W4 2W5",
        "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3W3 3W4 3W5",
    ],
    ("zb_h2", 4, 8, 1): [
        "0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
        "", "",
        "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3F4 3I4 3F5 3I5 3F6 3I6 3W0 3F7 3I7 3W1 3W2 3W3 3W4 3W5 3W6 3W7",
    ],
    ("chimera", 4, 4, 1): ["0F0 0F1 7F2 7B2 7F3 7B3 0B0 0B1", "1F0 6F2 1F1 6F3 6B2 1B0 6B3 1B1"],
    ("dualpipe", 4, 8, 1): [
        "0F0 0F1 0F2 7F4 7I4 7W4 7F5 0F3&7B5 7F6&0B0 7B6 7F7&0B1 7B7 0I2 0W2 0I3 0W3",
        "1F0 6F4 1F1 6F5 1F2 6B4 6F6&1B0 1F3&6B5 6F7&1B1 6B6 1B2 6I7 1I3 6W7 1W3",
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN_OUT, ids=lambda case: "-".join(map(str, case)))
def test_order_equals_the_written_out_example(case: tuple[str, int, int, int]) -> None:
    """Some ranks' orders as written out in the reference; micro-batches that go up are numbered after the others."""
    schedule, p, m, v = case
    found = SCHEDULES[schedule](p, m, v)
    for order, expected in zip(found, WRITTEN_OUT[case], strict=False):
        text = " ".join("&".join(map(str, step)) for step in steps(order))
        assert not expected or text == expected


@pytest.mark.parametrize(
    ("rank", "order"),
    [
        (0, "0F0 0F1 0F2 0F3 2F0 2F1 2F2 2B0 2F3 2B1 2B2 2B3 0B0 0B1 0B2 0B3"),
        (1, "1F0 1F1 1F2 1F3 3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 1B0 1B1 1B2 1B3"),
    ],
)
def test_whole_group_is_breadth_first_with_a_1f1b_tail(rank: int, order: str) -> None:
    """P=2, m=4, v=2 in one group of 4, as written out in the reference."""
    assert " ".join(map(str, interleaved(2, 4, 2, 4)[rank])) == order


@pytest.mark.parametrize(("p", "m", "v"), INTERLEAVED)
def test_group_of_p_is_megatrons_order(p: int, m: int, v: int) -> None:
    """A group size of P is the order without one."""
    assert interleaved(p, m, v, p) == interleaved(p, m, v)


def test_last_group_may_be_smaller() -> None:
    """P=2, m=7 in groups of 4: the last group has 3 micro-batches, each chunk's all together."""
    forwards = [a for a in interleaved(2, 7, 2, 4)[0] if a.kind == "F"]
    assert " ".join(map(str, forwards)) == "0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 0F4 0F5 0F6 2F4 2F5 2F6"


# --- the automatic schedule --------------------------------------------------------------------------------


@settings(max_examples=examples(24), deadline=None)
@given(
    p=st.integers(1, 6), m=st.integers(1, 14), forward=st.integers(1, 8), input_=st.integers(1, 8),
    weight=st.integers(0, 8), hop=st.integers(0, 4), limit=st.integers(1, 14), kept=st.sampled_from([0.25, 0.4, 1.0]),
    barrier=st.booleans(),
)  # fmt: skip
def test_automatic_order_keeps_its_limit_and_is_never_longer_than_those_that_fit_it(
    *, p: int, m: int, forward: int, input_: int, weight: int, hop: int, limit: int, kept: float, barrier: bool
) -> None:
    """No rank keeps more than the limit. ZB-H1 (P live), ZB-H2 (2P-1) and, without lag, 1F1B are never shorter.

    Without a barrier that holds of the longest time from a rank's first begin to its last end.
    """
    times = StageTimes(forward / 4, input_ / 4, weight / 4, hop / 4)
    found = zb_auto(p, m, times, Limit(limit, kept), barrier=barrier)
    frees = {"F": 1.0, "I": kept - 1.0, "W": -kept}
    for rank, order in enumerate(found):
        assert max(accumulate(frees[a.kind] for a in order)) <= limit + 1e-6
        assert sorted(order) == sorted(Action(kind, rank, i) for kind in "FIW" for i in range(m))

    def length_s(orders: list[list[Action]]) -> float:
        ends_s = end_times(orders, loop(p), times)
        return max(ends_s.values()) if barrier else max_span_s(orders, ends_s, times)

    assert length_s(found) >= m * sum(times[:3])
    for schedule, needed in (("zb_h1", p), ("zb_h2", 2 * p - 1)):
        if limit >= needed:
            assert length_s(found) <= length_s(SCHEDULES[schedule](p, m, 1))
    if limit >= p and not hop:
        assert length_s(found) <= (m + p - 1) * sum(times[:3])


QI_TIMES = {
    "1.5B": (8, StageTimes(18.522, 18.086, 9.337, 0.601), 2304, 24),
    "6.2B": (8, StageTimes(29.718, 29.444, 19.927, 0.527), 4096, 32),
    "14.6B": (16, StageTimes(11.347, 11.248, 8.132, 0.377), 5120, 40),
}
"""Ranks; forward, backward for inputs, weight part and message in milliseconds; hidden size and heads."""


def bubble(p: int, m: int, times: StageTimes, limit: Limit) -> float:
    """The part of the longest rank's span in which it does not compute, without a barrier between steps."""
    found = zb_auto(p, m, times, limit, barrier=False)
    return 1.0 - m * sum(times[:3]) / max_span_s(found, end_times(found, loop(p), times), times)


@pytest.mark.parametrize(
    ("model", "m", "published"),
    [("1.5B", 24, 0.0433), ("1.5B", 32, 0.0039), ("6.2B", 24, 0.0029), ("14.6B", 48, 0.0066)],
)
def test_automatic_orders_have_the_bubbles_of_the_paper(model: str, m: int, published: float) -> None:
    """With the memory of 2P micro-batches, as Qi et al. count it and with their times, to 0.15 points (ZB-2p)."""
    p, times, hidden, heads = QI_TIMES[model]
    kept = 32 * hidden / (34 * hidden + 5 * heads * 1024)
    assert bubble(p, m, times, Limit(2 * p, kept)) <= published + 0.0015


@given(
    p=st.integers(2, 6),
    forward=st.integers(4, 8),
    input_=st.integers(4, 8),
    weight=st.integers(1, 8),
    hop=st.integers(0, 2),
)
@settings(max_examples=examples(8), deadline=None)
def test_bubble_has_a_bound_where_weight_parts_keep_all(
    p: int, forward: int, input_: int, weight: int, hop: int
) -> None:
    """What the last rank must have done before its last backward bounds the first rank's span from below."""
    times, m = StageTimes(forward / 4, input_ / 4, weight / 4, hop / 16), 3 * p
    work_s = m * sum(times[:3])
    least_s = (p - 1) * (times.forward_s + times.input_s + 2 * times.hop_s) - (2 * p - 1) * times.weight_s
    assert bubble(p, m, times, Limit(2 * p)) >= 1.0 - work_s / (work_s + max(0.0, least_s)) - 1e-9


# --- placements --------------------------------------------------------------------------------------------


def test_placements_say_who_runs_what() -> None:
    """A loop goes round, a V comes back, two copies go both ways; hops count ranks ahead."""
    ring, turn, both = loop(3, 2), v_shape(3), bidirectional(3)
    assert ring.stages == ((0, 3), (1, 4), (2, 5))
    assert turn.stages == both.stages == ((0, 5), (1, 4), (2, 3))
    assert [ring.hop(s) for s in range(5)] == [1, 1, 1, 1, 1]
    assert [turn.hop(s) for s in range(5)] == [1, 1, 0, -1, -1]
    assert [s for s in range(6) if both.is_first(s)] == [0, 3]
    assert [s for s in range(6) if both.is_last(s)] == [2, 5]
    assert [both.copy_of(s) for s in range(6)] == [0, 0, 0, 1, 1, 1]
    assert loop(1, 2).hop(0) == 0
