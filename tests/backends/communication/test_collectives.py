"""Every kind of collective between real processes: natively, and step by step by every algorithm."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from backends.execution.result import Execution
from backends.simulated import SimulatedBackend
from backends.torch.launching.timeline import timeline
from backends.torch.values.randomness import initial_normal
from costmodels.collectives.catalogue import STEP_LISTS
from sim.engine.running.memory import memory_use
from sim.plan.checking.check import check
from sim.plan.errors import CheckError
from sim.plan.words.op import Collective, Op
from sim.plan.words.program import Plan
from tests.backends.collective_plans import (
    CHECKED,
    COLUMNS,
    ROOT,
    ROWS,
    SIZES,
    collective_requests,
    every_collective,
    laid_out,
    table,
    ways,
)
from tests.backends.jobs import prices
from traces.timeline import Timeline

Array = NDArray[np.float64]
NAMES = list(collective_requests())
WHOLE = [name for name in NAMES if " ranks, " in name and " no " not in name]


def normal(name: str, *shape: int) -> Array:
    """Return the global tensor that a persistent buffer is cut from."""
    return initial_normal(11, name, shape, [0] * len(shape), shape, device=torch.device("cpu")).numpy()


def expected(size: int) -> list[dict[str, Array]]:
    """Return what every rank's buffers must hold, by definition of the collectives."""
    x = normal("x", ROWS * size, COLUMNS).reshape(size, ROWS, COLUMNS)
    first = x[:, :1]
    flat = np.concatenate([x.sum(0).ravel(), first.sum(0).ravel()])
    length = -(-len(flat) // size)
    pieces = np.pad(flat, (0, length * size - len(flat))).reshape(size, length)
    rows = table(size)
    mine = [normal(f"mine.{s}", sum(rows[s]), 3) for s in range(size)]
    parts = [np.split(mine[s], np.cumsum(rows[s])[:-1]) for s in range(size)]
    slices = [np.split(x[s], size) for s in range(size)]
    return [
        {
            "x.sum": x.sum(0),
            "first.max": first.max(0),
            "one.sum": first[:, :, :1].sum(0),
            "both.x": x.sum(0),
            "both.first": first.sum(0),
            "gathered.rows": np.concatenate(first),
            "gathered.columns": np.concatenate(x, axis=1),
            "gathered.flat": first.ravel()[: size * COLUMNS - 1],
            "scattered": np.split(x.sum(0), size)[rank],
            "scattered.max": np.split(x.max(0), size)[rank],
            "piece": pieces[rank],
            "sent": x[size - 1],
            "sent.odd": first[size // 2],
            **({"total": x.sum(0)} if rank == size - 1 else {}),
            "greatest": first.max(0) if rank == 1 else np.zeros_like(first[0]),
            "cut": np.concatenate([slices[s][rank] for s in range(size)], axis=1),
            "swapped": np.concatenate([slices[s][rank] for s in range(size)]),
            "got": np.concatenate([parts[s][rank] for s in range(size)]),
        }
        for rank in range(size)
    ]


def differing(execution: Execution, wanted: list[dict[str, Array]]) -> set[str]:
    """Return the buffers that are off by more than 1e-12 of their largest element on any rank."""
    return {
        name
        for result, values in zip(execution.ranks, wanted, strict=True)
        for name, value in values.items()
        if not np.allclose(result.values[name, None], value, rtol=0.0, atol=1e-12 * np.abs(value).max())
    }


@pytest.mark.parametrize("name", WHOLE)
def test_collectives_do_what_their_names_say(results: Mapping[str, Execution], name: str) -> None:
    """Natively and by every algorithm, among 2, 3 and 4 ranks, to 1e-12 of the largest element."""
    assert differing(results[name], expected(int(name[0]))) == set()


def test_groups_over_several_axes_are_the_same_step_by_step(results: Mapping[str, Execution]) -> None:
    """Also where a group's order is not that of the ranks, and two streams communicate at once."""
    explicit, native = results["over several axes, explicit"], results["collectives"]
    for one, other in zip(explicit.ranks, native.ranks, strict=True):
        assert one.sent_bytes > 0
        assert one.values.keys() == other.values.keys()
        for key, value in other.values.items():
            np.testing.assert_allclose(one.values[key], value, rtol=0.0, atol=1e-12 * np.abs(value).max())


def test_every_algorithm_is_run() -> None:
    """The ways above leave out no step list, and run those that look at nodes on several."""
    covered = {(kind, way.algorithm(kind), way.devices_per_node) for _, way in ways() for kind in STEP_LISTS}
    assert {pair[:2] for pair in covered} == {(kind, name) for kind, names in STEP_LISTS.items() for name in names}
    assert {nodes for _, name, nodes in covered if name.startswith("hierarchical")} <= {2, 3}


@pytest.mark.parametrize("name", WHOLE)
def test_only_explicit_collectives_send_messages_of_their_own(results: Mapping[str, Execution], name: str) -> None:
    """The bytes of step lists are counted as they leave: every rank sends some, natively none is known."""
    sent = [result.sent_bytes for result in results[name].ranks]
    assert all(n > 0 for n in sent) if "explicit" in name else not any(sent)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("broadcast", {"sent", "sent.odd"}),
        ("reduce", {"total", "greatest"}),
        ("all_to_all", {"cut", "swapped", "got"}),
    ],
)
def test_numbers_miss_a_collective_that_is_silent(
    results: Mapping[str, Execution], size: int, kind: str, wrong: set[str]
) -> None:
    """Without a kind's communication exactly its results are wrong."""
    assert differing(results[f"{size} ranks, no {kind}"], expected(size)) == wrong


@pytest.mark.parametrize("size", SIZES)
def test_numbers_miss_a_root_or_reduction_that_was_altered(results: Mapping[str, Execution], size: int) -> None:
    """What all ranks alter alike passes the check, and shows in exactly the buffers that it concerns."""
    execution = results[f"{size} ranks, no longer the same"]
    check(execution.plan)
    assert differing(execution, expected(size)) == {"sent.odd", "greatest", "scattered.max"}


# --- simulated and executed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"{size} ranks, {how}" for size in SIZES for how in ("native", next(ways())[0])])
def test_both_timelines_have_the_same_ops_and_bytes(results: Mapping[str, Execution], name: str) -> None:
    """Rank by rank and stream by stream, also where the bytes of ranks differ; and memory to the byte."""
    plan = results[name].plan
    simulated = SimulatedBackend(prices(plan.mesh.size), fold=False, detail="op").run(plan)
    executed = timeline(plan, results[name].ranks)
    executed.check_streams()

    def ops(t: Timeline) -> set[tuple[object, ...]]:
        return {(int(t.rank[i]), t.stream.at(i), t.name.at(i), t.kind.at(i), int(t.bytes[i])) for i in range(len(t))}

    assert ops(simulated) == ops(executed)
    uneven = max(int(t[2].rsplit(".", 1)[1]) for t in ops(executed) if "all_to_all" in str(t[2]))
    sent = {t[0]: t[4] for t in ops(executed) if t[2] == f"work/all_to_all.{uneven}"}
    assert sent == {rank: 24 * sum(row) for rank, row in enumerate(table(plan.mesh.size))}
    for result in results[name].ranks:
        assert result.memory.peak_bytes == memory_use(plan.program_of(result.rank)).peak_bytes


# --- an op that is left out or altered in the plan -----------------------------------------------------------------


def changed(plan: Plan, rank: int, change: Callable[[tuple[Op, ...]], tuple[Op, ...]]) -> Plan:
    """Return the plan with the ops of one rank changed."""
    programs = list(plan.programs)
    task = programs[rank].tasks["work"]
    programs[rank] = replace(programs[rank], tasks={"work": replace(task, ops=change(task.ops))})
    return replace(plan, programs=tuple(programs))


def without(ops: tuple[Op, ...], place: int) -> tuple[Op, ...]:
    """Return ops less the one at a place."""
    return (*ops[:place], *ops[place + 1 :])


def swapped(ops: tuple[Op, ...], place: int) -> tuple[Op, ...]:
    """Return ops with the one at a place after its next."""
    return (*ops[:place], ops[place + 1], ops[place], *ops[place + 2 :])


@pytest.mark.parametrize("size", SIZES)
def test_check_refuses_any_collective_that_one_rank_leaves_out(size: int) -> None:
    """Each op in turn, on the first and on the last rank."""
    plan = every_collective(size)
    check(plan)
    for rank in (0, size - 1):
        ops = plan.programs[rank].tasks["work"].ops
        for i in [i for i, op in enumerate(ops) if isinstance(op, Collective)]:
            with pytest.raises(CheckError):
                check(changed(plan, rank, partial(without, place=i)))


@pytest.mark.parametrize("size", SIZES)
def test_check_refuses_any_two_collectives_that_one_rank_swaps(size: int) -> None:
    """Neighbours issued in the other order, unless both are the same in all that a group must agree on."""
    plan = every_collective(size)
    ops = plan.programs[0].tasks["work"].ops
    for i in range(len(ops) - 1):
        if isinstance(ops[i], Collective) and isinstance(ops[i + 1], Collective):
            with pytest.raises(CheckError):
                check(changed(plan, 0, partial(swapped, place=i)))


# --- layouts, and training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["native", "explicit"])
def test_derived_gradients_of_layout_changes_are_those_of_autograd(results: Mapping[str, Execution], how: str) -> None:
    """all_to_all, reduce and broadcast forward; their conjugates backward; against a dense product in torch."""
    x, w, v = (torch.tensor(normal(*key)).requires_grad_() for key in (("x", 8, 4), ("w", 4, 5), ("v", 4, 4)))
    dt, du = torch.tensor(normal("dt", 32, 5)), torch.tensor(normal("du", 2, 4))
    root = slice(2 * ROOT, 2 * ROOT + 2)
    torch.autograd.backward([x @ w, x[root] @ v], [dt[8 * ROOT : 8 * ROOT + 8], du])
    for rank, result in enumerate(results[f"laid out, {how}"].ranks):
        values = {name: torch.tensor(value) for (name, _), value in result.values.items()}
        assert x.grad is not None
        assert w.grad is not None
        assert v.grad is not None
        for actual, wanted in (
            (values["dx"], x.grad[2 * rank : 2 * rank + 2]),
            (values["w.gradient"], w.grad[rank : rank + 1]),
            (values["v.gradient"], v.grad[:, rank : rank + 1]),
            (values["z.reduce"], (x @ w).detach() if rank == ROOT else torch.zeros(8, 5, dtype=torch.float64)),
        ):
            torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


def test_laid_out_plan_has_all_conjugates() -> None:
    """The plan above holds each of the three both ways, so the test above compares them all."""
    ops = [op for task in laid_out().programs[0].tasks.values() for op in task.ops if isinstance(op, Collective)]
    assert sorted(str(op.kind) for op in ops) == sorted(["all_to_all", "reduce", "broadcast"] * 2)


@pytest.mark.parametrize("name", CHECKED)
def test_training_reproduces_the_dense_reference_step_by_step(results: Mapping[str, Execution], name: str) -> None:
    """With explicit collectives loss, gradients and parameters are within 1e-9 of autograd's, as natively."""
    report, native = results[f"explicit: {name}"].check, results[name].check
    assert report is not None
    assert native is not None
    assert report.passed, report.worst
    assert report.errors.keys() == native.errors.keys()
    assert sum(result.sent_bytes for result in results[f"explicit: {name}"].ranks) > 0
