"""The engine on made-up programs full of hazards between streams, against the slow engine."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine.folding.folding import no_fold
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from tests.examples import examples
from tests.sim.engine.reference import ReferenceEngine
from tests.sim.engine.stated_pricing import StatedPricing
from tests.sim.jobs import as_array, op_times

STREAMS = ("compute", "tp", "dp")
SECONDS = st.integers(0, 8).map(float)


def stated(latency_s: float, demands: tuple[tuple[str, float], ...]) -> dict[str, Any]:
    """Return the attributes of work with a stated price: its latency, and seconds of use of each resource."""
    return {"duration_s": latency_s, "latency_s": latency_s, "demands": demands}


@st.composite
def programs(draw: st.DrawFn, rank: int, resources: tuple[str, ...]) -> Program:
    """Draw a program: tasks on up to three streams that read and write each other's buffers in any way."""
    scopes = st.sampled_from([Scope.MICROBATCH, Scope.MICROBATCH, Scope.PERSISTENT, Scope.STEP])
    buffers = {
        f"b{k}": Buffer(f"b{k}", (1,), "float32", Kind.ACTIVATION, draw(scopes)) for k in range(draw(st.integers(2, 5)))
    }
    names = st.lists(st.sampled_from(sorted(buffers)), max_size=2, unique=True).map(tuple)
    tasks = {}
    for k in range(draw(st.integers(1, 4))):
        phase = draw(st.sampled_from([Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.GRADIENT_SYNC]))
        ops = []
        for j in range(draw(st.integers(1, 5))):
            demands = draw(st.dictionaries(st.sampled_from(resources), SECONDS, max_size=2)) if resources else {}
            stream = "compute" if j == 0 and phase is not Phase.GRADIENT_SYNC else draw(st.sampled_from(STREAMS))
            attributes = stated(draw(SECONDS), tuple(demands.items()))
            ops.append(Compute(f"op{j}", "delay", draw(names), draw(names), attributes, stream))
        tasks[f"t{k}"] = Task(f"t{k}", phase, tuple(ops))
    given = draw(st.sets(st.sampled_from(sorted(buffers))))
    first = Compute("given", "delay", (), tuple(sorted(given)), stated(1.0, ()))
    tasks["start"] = Task("start", Phase.PREPARE, (first,))
    call = st.builds(Call, st.sampled_from(sorted(tasks.keys() - {"start"})), st.integers(0, 2), lag=st.just(0))
    calls = [Call("start", i) for i in range(3)] + draw(st.lists(call, min_size=1, max_size=8))
    return Program({"pp": rank}, buffers, tasks, tuple(readable(buffers, tasks, calls)))


def readable(buffers: dict[str, Buffer], tasks: dict[str, Task], calls: list[Call]) -> Iterator[Call]:
    """Yield the calls that read nothing which no earlier op has written."""
    written: set[tuple[str, int | None]] = set()
    for call in calls:
        now = set(written)
        instance = {n: (n, call.microbatch if b.scope is Scope.MICROBATCH else None) for n, b in buffers.items()}
        reads_unwritten = False
        for op in tasks[call.task].ops:
            wanted = {instance[name] for name in op.reads if buffers[name].scope is not Scope.PERSISTENT}
            reads_unwritten |= not wanted <= now
            now |= {instance[name] for name in op.writes}
        if not reads_unwritten:
            written = now
            yield call


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan of one or two ranks that may meet on resources."""
    resources = draw(st.sampled_from([(), (), ("link",), ("link", "memory", "port")]))
    ranks = draw(st.integers(1, 2))
    made = tuple(draw(programs(rank, resources)) for rank in range(ranks))
    return Plan("made up", Mesh((("pp", ranks),)), made)


@settings(max_examples=examples(96), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(), coalesce=st.booleans())
def test_made_up_programs_run_as_the_reference_engine_says(plan: Plan, coalesce: bool) -> None:
    """Whatever reads, writes and shares what, in whatever order it is called, every op has the reference's times."""
    check(plan)
    run = simulate(plan, StatedPricing(), coalesce=coalesce)
    reference = ReferenceEngine(plan, StatedPricing(), no_fold(plan, StatedPricing())).run()
    found = op_times(run)
    keys = sorted(reference.times)
    assert sorted(found) == keys
    difference = np.abs(as_array(found, keys) - as_array(reference.times, keys))
    assert difference.max() <= 1e-9 * max(1.0, reference.makespan_s), keys[int(difference.max(axis=1).argmax())]


@pytest.mark.parametrize("coalesce", [True, False])
def test_synchronisation_that_starts_early_meets_the_forwards(coalesce: bool) -> None:
    """A task whose first op needs nothing shares the link from the start, though a later op of it waits."""

    def op(name: str, stream: str, reads: tuple[str, ...], writes: tuple[str, ...], link_s: float) -> Compute:
        return Compute(name, "delay", reads, writes, stated(0.0, (("link", link_s),) if link_s else ()), stream)

    forward = Task("forward", Phase.FORWARD, (op("f", "compute", (), ("g",), 4.0),))
    sync = Task("sync", Phase.GRADIENT_SYNC, (op("s", "dp", (), (), 4.0), op("t", "dp", ("g",), (), 0.0)))
    buffers = {"g": Buffer("g", (1,), "float32", Kind.GRADIENT, Scope.PERSISTENT)}
    calls = (Call("forward", 0), Call("forward", 1), Call("sync"))
    plan = Plan("early", Mesh((("pp", 1),)), (Program({}, buffers, {"forward": forward, "sync": sync}, calls),))
    times = op_times(simulate(plan, StatedPricing(), coalesce=coalesce))
    assert times == {(0, 0, 0): (0, 8), (0, 1, 0): (8, 12), (0, 2, 0): (0, 8), (0, 2, 1): (12, 12)}
