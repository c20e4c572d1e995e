"""Policies of movement: laws of their triggers, and the layer pipeline of Angel-PTM through the engine."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.engine.prices.activity import Activity
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import simulate
from sim.memory.movement import BudgetError, Earliest, Movement, Stay, Window
from sim.plan.functions.tracing import Parameter, Tensor
from sim.plan.words.buffer import Buffer, Kind, Scope, Tier
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, Compute, Copy, Op
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from sim.training.data.gathers import Gathers, Pass, Shard
from sim.training.data.units import END_UNIT, Unit
from tests.examples import examples

LAYERS, RANKS = 24, 8
LAYER_BYTES = 100_663_296
"""24 h^2 for h = 2048: the numbers of 16 bits of a layer."""
PCIE, RING = 16e9, 200e9
"""Bytes/s of a rank's link to its host, and of its ring."""


# --- laws ------------------------------------------------------------------------------------------------------------


@st.composite
def stays(draw: st.DrawFn) -> list[Stay]:
    """Draw units in the order of their first ops; some overlap."""
    found, position = [], 0
    for index in range(draw(st.integers(1, 12))):
        position += draw(st.integers(1, 3))
        found.append(Stay(str(index), position, position + draw(st.integers(0, 4)), draw(st.integers(1, 50))))
    return found


def resident_bytes(found: list[Stay], triggers: list[int], op: int) -> int:
    """Return the bytes of the units that are on the device, or on their way, during an op."""
    both = zip(found, triggers, strict=True)
    return sum(stay.num_bytes for stay, trigger in both if trigger <= op <= stay.last)


@settings(max_examples=examples(24), deadline=None)
@given(found=stays(), extra=st.integers(0, 100))
def test_units_come_as_early_as_memory_allows_and_no_earlier(found: list[Stay], extra: int) -> None:
    """No op finds more than the budget; one op earlier, a unit would not fit, or would overtake the one before it."""
    on_demand = [stay.first for stay in found]
    last = max(stay.last for stay in found)
    budget = max(resident_bytes(found, on_demand, op) for op in range(last + 1)) + extra
    triggers = Earliest(budget).triggers(found)
    assert all(resident_bytes(found, triggers, op) <= budget for op in range(last + 1))
    assert all(trigger <= stay.first for stay, trigger in zip(found, triggers, strict=True))
    assert triggers == sorted(triggers)
    for index, trigger in enumerate(triggers):
        if trigger > max(triggers[:index], default=0):
            sooner = [*triggers[:index], trigger - 1]
            taken = [resident_bytes(found[: index + 1], sooner, op) for op in range(trigger - 1, found[index].last + 1)]
            assert max(taken) > budget


@settings(max_examples=examples(12), deadline=None)
@given(found=stays(), data=st.data())
def test_too_little_memory_is_refused_with_what_is_needed(found: list[Stay], data: st.DataObject) -> None:
    """With less than units in use at once take, the error names what they take, and with that they come."""
    needed = max(resident_bytes(found, [stay.first for stay in found], stay.first) for stay in found)
    budget = data.draw(st.integers(0, needed - 1))
    with pytest.raises(BudgetError) as refused:
        Earliest(budget).triggers(found)
    assert refused.value.needed_bytes == needed
    assert Earliest(needed).triggers(found)


def test_equal_units_in_a_row_make_a_budget_a_window() -> None:
    """A budget of n + 1 equal units that are used one after the other lets n come ahead."""
    row = [Stay(str(i), i, i, 10) for i in range(8)]
    for ahead in range(4):
        assert Earliest(10 * (ahead + 1)).triggers(row) == Window(ahead).triggers(row)


# --- the layer pipeline of Angel-PTM ---------------------------------------------------------------------------------


class StatedPrices(ClusterPricing):
    """Prices of a layer pipeline: a shard over PCIe, an all_gather by a ring, computing as long as it says."""

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the activity of an op."""
        if isinstance(op, Copy):
            return Activity(0.0, ((("pcie", rank), LAYER_BYTES / RANKS / PCIE),))
        if isinstance(op, Collective):
            return Activity(0.0, ((("ring", rank), LAYER_BYTES * (RANKS - 1) / RANKS / RING),))
        return ClusterPricing.price(self, plan, program, op, rank)


def pipeline_s(forward_s: float, backward_s: float, movement: Movement, num_cached: int = 0) -> float:
    """Return the time of a forward and a backward of layers that are gathered for each; the last layer stays."""
    outputs = [f"{label}{index}" for label in "fb" for index in range(LAYERS)]
    buffers = {name: Buffer(name, (1,), "float32", Kind.ACTIVATION) for name in outputs}
    units, shards = [], {}
    for index in range(LAYERS):
        name = END_UNIT if index == LAYERS - 1 else f"layer{index}"
        value = Tensor(f"w{index}", (LAYER_BYTES // 2,), "bfloat16")
        units.append(Unit(name, (Parameter(value, Tensor(f"g{index}", (1,), "float32"), name),)))
        tier = Tier.DEVICE if index < num_cached else Tier.HOST
        shards[name] = Shard(f"shard{index}", (("dp",),), tier=tier)
        piece = (LAYER_BYTES // 2 // RANKS,)
        buffers[f"shard{index}"] = Buffer(f"shard{index}", piece, "bfloat16", Kind.PARAMETER, Scope.PERSISTENT, tier)
        for label in ("f", "b"):
            loaded = f"{label}.{name}.loaded"
            buffers[loaded] = Buffer(loaded, piece, "bfloat16", Kind.PARAMETER)
        for suffix in ("", ".again"):
            buffers[f"w{index}{suffix}"] = Buffer(f"w{index}{suffix}", value.shape, "bfloat16", Kind.PARAMETER)
    buffers["begin"] = Buffer("begin", (0,), "uint8", Kind.WORKSPACE)
    names = {f"w{index}": f"w{index}.again" for index in range(LAYERS - 1)}
    passes = [
        Pass("f", [_layer("f", index, forward_s) for index in range(LAYERS)], {}),
        Pass("b", [_layer("b", index, backward_s) for index in reversed(range(LAYERS))], names),
    ]
    written = Gathers(shards, frozenset({END_UNIT}), movement, "begin").into(passes, units)
    tasks = {label: Task(label, Phase.FORWARD, tuple(ops)) for label, ops in zip("fb", written, strict=True)}
    program = Program({}, buffers, tasks, (Call("f", 0), Call("b", 0)))
    node = replace(load_node("dgx-a100-40g"), devices_per_node=RANKS)
    prices = StatedPrices(Cluster(node, 1, RANKS), load_profile(node.device.generation))
    return simulate(Plan("layers", Mesh((("dp", RANKS),)), (program,)), prices).makespan_s


def _layer(label: str, index: int, duration_s: float) -> Compute:
    return Compute(f"{label}{index}", "delay", (f"w{index}",), (f"{label}{index}",), {"duration_s": duration_s})


@pytest.mark.parametrize(
    ("forward_ms", "backward_ms", "budget_layers", "cached_layers", "expected_s"),
    [
        (5, 10, 1, 0, 0.4176611942),
        (5, 10, 2, 0, 0.3612268339),
        (5, 10, 6, 0, 0.3612268339),
        (0.4, 0.8, 1, 0, 0.0864611942),
        (0.4, 0.8, 2, 0, 0.0442036122),
        (0.4, 0.8, 4, 0, 0.0389147699),
        (0.4, 0.8, 1, 12, 0.0675868262),
        (0.4, 0.8, 2, 12, 0.0371260262),
        (0.4, 0.8, 4, 12, 0.0338412032),
        (0.4, 0.8, 8, 12, 0.0320795955),
    ],
)
def test_a_pipeline_of_layers_takes_the_reference_times(
    forward_ms: float, backward_ms: float, budget_layers: int, cached_layers: int, expected_s: float
) -> None:
    """Copies, all_gathers and computing, each in order: times of an independent model of three queues, to 1e-10 s."""
    movement = Earliest(budget_layers * LAYER_BYTES)
    found = pipeline_s(forward_ms / 1e3, backward_ms / 1e3, movement, cached_layers)
    assert found == pytest.approx(expected_s, abs=1e-10)


def test_on_demand_is_a_closed_form() -> None:
    """Every one of 2L - 1 stays waits for its copy and its all_gather."""
    each_s = LAYER_BYTES / RANKS / PCIE + LAYER_BYTES * (RANKS - 1) / RANKS / RING
    expected_s = LAYERS * 0.0012 + (2 * LAYERS - 1) * each_s
    assert pipeline_s(0.0004, 0.0008, Window(0)) == pytest.approx(expected_s, abs=1e-10)
