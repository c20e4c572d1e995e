"""Collectives whose root takes turns: ranks are one class where turns change no time, and stay apart where they do."""

from typing import Any

import numpy as np
import pytest

from sim.engine.findings.link_use import link_use
from sim.engine.folding import turns
from sim.engine.folding.folding import fold, no_fold
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Direction, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from tests.sim.jobs import GPT, dense_plan, op_times, pricing_on
from tests.sim.training.test_mesh_methods import layer_plan

ROUNDING = 1e-9


def tiny(heads: int) -> dict[str, Any]:
    """Return a model of one layer whose sizes that number of heads divides."""
    widths = {"hidden_size": 4 * heads, "num_heads": heads, "num_kv_heads": heads, "ffn_hidden_size": 16 * heads}
    return GPT | widths | {"num_layers": 1, "sequence_length": 8, "vocab_size": 16 * heads, "dropout": 0.0}


def gap(folded: SimulatedRun, whole: SimulatedRun) -> float:
    """Return the largest difference of any op's start or end, folded against unfolded, relative to the makespan."""
    stands_for, times = folded.folding.stands_for, op_times(folded)
    gap_s = max(
        abs(value - mine)
        for (rank, *rest), found in op_times(whole).items()
        for value, mine in zip(found, times[stands_for[rank], rest[0], rest[1]], strict=True)
    )
    return gap_s / whole.makespan_s


def carried(run: SimulatedRun, pricing: ClusterPricing) -> np.ndarray:
    """Return the bytes and the busy seconds of every link, [2, links]."""
    use = link_use(run, pricing)
    return np.stack([np.append(values, 0.0)[use.row_of] for values in (use.num_bytes, use.busy_s)])


@pytest.mark.parametrize(
    ("node", "per_node", "mesh", "keys"),
    [
        ("dgx-a100-80g", 8, (4, 4), {"recompute": "full"}),
        ("meluxina-gpu", 4, (4, 4), {"overlap": "prefetch"}),
        ("meluxina-gpu", 1, (2, 2, 2), {}),
        ("dgx-a100-80g", 3, (3, 3), {"b": 3, "model": tiny(6)}),
        ("meluxina-gpu", 4, (2, 2, 2), {"depth_sync": "per_step", "dp": 2, "zero_stage": 1}),
    ],
)
def test_ranks_that_take_turns_as_roots_are_one_class(
    node: str, per_node: int, mesh: tuple[int, ...], keys: dict[str, Any]
) -> None:
    """One rank stands for all of a SUMMA mesh; every op's time and what every link carries are those of all ranks."""
    method = "2.5d" if len(mesh) > 2 else "2d"
    plan = layer_plan("large", method, mesh, **keys)
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=per_node)
    folded, whole = (simulate(plan, pricing, fold=how) for how in (fold, no_fold))
    assert folded.folding.multiplicity == {0: plan.mesh.size}
    assert gap(folded, whole) < ROUNDING
    expected = carried(whole, pricing)
    assert np.abs(carried(folded, pricing) - expected).max(axis=1) == pytest.approx(
        [0, 0], abs=ROUNDING * expected.max()
    )


def beside_messages(num_bytes: int = 2**24) -> Plan:
    """Return three ranks that broadcast in turns on one stream, while each sends a message to the next on another."""
    names = ("mine", "block", "sent", "received")
    buffers = {n: Buffer(n, (num_bytes,), "uint8", Kind.ACTIVATION, Scope.PERSISTENT) for n in names}
    tasks = {}
    for root in range(3):
        turn = Collective(f"turn{root}", CollectiveKind.BROADCAST, ("dp",), ("mine",), ("block",), "turns", root=root)
        tasks[turn.name] = Task(turn.name, Phase.PREPARE, (turn,))
        give = Send(f"give{root}", "dp", 1, Direction.FORWARD, ("sent",), "giving")
        tasks[give.name] = Task(give.name, Phase.PREPARE, (give,))
    receive = Recv("take", "dp", -1, Direction.FORWARD, ("received",), "taking")
    tasks["take"] = Task("take", Phase.PREPARE, (receive,))
    calls = [Call(name) for root in range(3) for name in (f"turn{root}", f"give{root}", "take")]
    return Plan("turns", Mesh((("dp", 3),)), (Program({}, buffers, tasks, tuple(calls)),))


def test_turns_that_change_times_keep_ranks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message from the end of a broadcast's chain to its root shares no link with it, and is over sooner.

    Taken for one class all the same, ranks get wrong times: without the check of turns this test fails.
    """
    plan = beside_messages()
    pricing = pricing_on("meluxina-gpu", 3, devices_per_node=1)
    folded, whole = (simulate(plan, pricing, fold=how) for how in (fold, no_fold))
    assert len(folded.folding.multiplicity) == 3
    assert gap(folded, whole) < ROUNDING
    monkeypatch.setattr(turns, "turns_matter", lambda *_: False)
    wrong = simulate(plan, pricing)
    assert len(wrong.folding.multiplicity) == 1
    assert gap(wrong, whole) > 0.01


def test_a_root_that_is_always_the_same_stays_apart() -> None:
    """Broadcasts of one root load its links otherwise than those of others, in every turn."""
    plan = beside_messages()
    (program,) = plan.programs
    calls = tuple(call for call in program.calls if call.task == "turn0")
    one = Program({}, program.buffers, {"turn0": program.tasks["turn0"]}, calls)
    found = fold(Plan("one", plan.mesh, (one,)), pricing_on("meluxina-gpu", 3, devices_per_node=1))
    assert len(found.multiplicity) > 1
    assert found.carries_alike is None


def test_4096_ranks_of_a_mesh_are_one_class() -> None:
    """In a mesh of 16 x 16 x 16 on nodes of four, one rank stands for all."""
    plan = dense_plan(tensor_method="2.5d", mesh=(16, 16, 16), tp=4096, b=256, model=tiny(16))
    assert fold(plan, pricing_on("meluxina-gpu", 4096)).multiplicity == {0: 4096}
