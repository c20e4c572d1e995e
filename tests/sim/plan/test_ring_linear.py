"""Products in pieces, beside the messages that bring their inputs or take their sums away."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.memory import memory_use
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.errors import LayoutError
from sim.plan.functions.ring_linear import gathered_linear, scattered_linear
from sim.plan.functions.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.layout import REPLICATED, Layout, Shard, sharded
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Op, Send
from sim.plan.words.program import Call, Phase, Plan, Program
from sim.training.errors import SpecError
from sim.training.spec.job import OsdpSpec
from tests.examples import examples
from tests.sim.jobs import GPT, dense_job, dense_plan, pricing_on

MODEL = GPT | {
    "hidden_size": 8192, "num_heads": 64, "num_kv_heads": 64, "sequence_length": 2048, "ffn_hidden_size": 32768,
    "attention": "flash", "dropout": 0.0, "num_layers": 2, "vocab_size": 8192,
}  # fmt: skip
COLUMNS, ROWS = sharded(1, ("tp",)), sharded(0, ("tp",))
Write = Callable[[TaskTracer, Tensor, Parameter], Tensor]


def plan_of(
    write: Write, ranks: int, shape: tuple[int, ...], weight: tuple[tuple[int, ...], Layout], x_dim: int
) -> Plan:
    """Return a plan of one linear layer's forward, of a global x sharded along a dimension and a global weight."""
    mesh = Mesh((("tp", ranks),))
    program = ProgramTracer(mesh, "bfloat16", "float32")
    layout = sharded(x_dim, ("tp",))
    x = program.tensor(
        Buffer("x", layout.local_shape(shape, mesh), "bfloat16", Kind.PARAMETER, Scope.PERSISTENT,
               initial=Initial("normal", "x"), global_shape=shape, layout=layout),
        layout,
    )  # fmt: skip
    t = TaskTracer(program, Scope.STEP)
    t.wait_for(write(t, x, program.parameter("w", *weight, "normal")).name)
    task = program.add_task("forward", Phase.FORWARD, t.ops)
    plan = Plan("layer", mesh, (Program({}, program.buffers, {"forward": task}, (Call(task.name),)),))
    check(plan)
    return plan


def ops_of(plan: Plan) -> tuple[Op, ...]:
    """Return the ops of a plan's only task."""
    return plan.programs[0].tasks["forward"].ops


def seconds(plan: Plan, prices: ClusterPricing, ending: str) -> float:
    """Return how long an op alone takes, the first whose name has that ending."""
    op = next(op for op in ops_of(plan) if op.name.endswith(ending))
    return prices.price(plan, plan.programs[0], op, 0).duration_s


sizes = st.sampled_from([256, 1024, 4096, 16384])


@settings(max_examples=examples(8))
@given(t=st.sampled_from([2, 4, 8]), rows=st.integers(1, 16), n=sizes, k=sizes)
def test_gathered_product_ends_with_its_last_piece(t: int, rows: int, n: int, k: int) -> None:
    """Products follow each other, and none begins before its piece has come around: max over j of j m + (t - j) p."""
    plan = plan_of(
        lambda tracer, x, w: gathered_linear(tracer, "y", x, w, axis="tp"),
        t,
        (128 * rows * t, 1, k),
        ((k, t * n), COLUMNS),
        0,
    )
    prices = pricing_on("hgx-h100", t)
    product_s, message_s = seconds(plan, prices, "y"), seconds(plan, prices, ".send")
    expected_s = max(j * message_s + (t - j) * product_s for j in range(t))
    assert simulate(plan, prices).makespan_s == pytest.approx(expected_s)


@settings(max_examples=examples(8))
@given(t=st.sampled_from([2, 4, 8]), rows=st.integers(1, 16), n=sizes, k=sizes)
def test_scattered_product_ends_with_its_own_rows_or_the_last_term(t: int, rows: int, n: int, k: int) -> None:
    """Terms leave one after the other as they are made; the sum waits for the own one and for the last that comes."""
    plan = plan_of(
        lambda tracer, x, w: scattered_linear(tracer, "y", x, w, axis="tp"),
        t,
        (128 * rows * t, 1, t * k),
        ((t * k, n), ROWS),
        2,
    )
    prices = pricing_on("hgx-h100", t)
    product_s, sum_s = seconds(plan, prices, "y"), seconds(plan, prices, "y.sum")
    send = next(op for op in ops_of(plan) if isinstance(op, Send))
    message = prices.price(plan, plan.programs[0], send, 0)
    sent_s = 0.0
    for number in range(1, t):
        sent_s = max(sent_s, number * product_s) + message.occupancy_s
    expected_s = max(t * product_s, sent_s + message.latency_s) + sum_s
    assert simulate(plan, prices).makespan_s == pytest.approx(expected_s)


def test_a_product_that_is_no_sum_cannot_be_scattered() -> None:
    """Rows are summed over the axis only where the weight is cut along what is contracted."""
    with pytest.raises(LayoutError, match="is no sum over 'tp'"):
        plan_of(lambda t, x, w: scattered_linear(t, "y", x, w, axis="tp"), 2, (8, 2, 4), ((4, 6), REPLICATED), 1)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [({"tp": 2}, "sequence_parallel is false"), ({"tp": 2, "sequence_parallel": True, "osdp": OsdpSpec()}, "osdp")],
)
def test_pieces_without_rows_to_gather_are_refused(keys: dict[str, Any], rule: str) -> None:
    """There is nothing to cut up without sequence parallelism, and weights in slices are not cut further."""
    with pytest.raises(SpecError, match=rule) as caught:
        dense_job(dp=2, collective_matmul=True, **keys)
    assert caught.value.key == "parallel.tensor.collective_matmul"


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_products_hide_what_their_layers_communicate(precision: str) -> None:
    """With products longer than messages a step loses most of what gathers and reduce_scatters cost it."""
    keys: dict[str, Any] = {"tp": 4, "m": 2, "sequence_parallel": True, "model": MODEL, "precision": precision}
    prices = pricing_on("hgx-h100", 4)
    plain, pieces = (simulate(dense_plan(**keys, collective_matmul=on), prices) for on in (False, True))
    program = plain.programs[0]
    held_s = sum(
        prices.price(plain.plan, program, op, 0).duration_s
        for call in program.calls
        for op in program.tasks[call.task].ops
        if isinstance(op, Collective) and op.kind is not CollectiveKind.ALL_REDUCE and op.axes == ("tp",)
        and op.name.startswith("layer") and program.tasks[call.task].phase is Phase.FORWARD
    )  # fmt: skip
    assert plain.makespan_s - pieces.makespan_s > 0.6 * held_s


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_only_own_pieces_live_from_forward_to_backward(recompute: str) -> None:
    """Between a micro-batch's forward and its backward a rank holds as much as without pieces."""
    keys: dict[str, Any] = {"tp": 4, "sequence_parallel": True, "recompute": recompute, "precision": "bf16"}
    held = [
        memory_use(dense_plan(**keys, collective_matmul=on).programs[0]).before_bytes.tolist() for on in (False, True)
    ]
    assert held[0] == held[1]


def test_layouts_of_both_kinds_follow_the_plain_product() -> None:
    """What is gathered comes out split along the weight's output, what is scattered along its rows."""
    found: list[Layout] = []
    plan_of(lambda t, x, w: _noted(found, gathered_linear(t, "y", x, w, axis="tp")), 2, (8, 2, 4), ((4, 6), COLUMNS), 0)
    plan_of(lambda t, x, w: _noted(found, scattered_linear(t, "y", x, w, axis="tp")), 2, (8, 2, 4), ((4, 6), ROWS), 2)
    assert found == [REPLICATED.with_("tp", Shard(2)), REPLICATED.with_("tp", Shard(0))]


def _noted(found: list[Layout], y: Tensor) -> Tensor:
    found.append(y.layout)
    return y
