"""The classes of ops that share an error, and how long their calls take."""

from msgspec.structs import replace

from costmodels.software import Software
from sim.engine.running.simulate import simulate
from sim.engine.uncertainty.errors import ErrorClass, ErrorClasses
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.op import Compute
from sim.plan.words.program import Call, Phase, Program, Task
from tests.sim.jobs import GPT, dense_plan, pricing_on

HEADS = ("q", "k", "v", "out")


OWN = Compute("own", "flash_attention", HEADS[:3], (HEADS[3], "lse"), {})
"""Attention to a rank's own keys."""
PASSED_ON = replace(OWN, name="passed on", attributes={"causal": False, "ring": "cp", "step": 1})
"""Attention to keys of another rank of a ring, in two chunks of which a query sees one."""


def program_of(*ops: Compute) -> Program:
    """Return a program of one task."""
    buffers = {name: Buffer(name, (64, 1, 8, 8), "bfloat16", Kind.ACTIVATION) for name in HEADS}
    buffers["lse"] = Buffer("lse", (1, 8, 64), "float32", Kind.ACTIVATION)
    return Program({}, buffers, {"step": Task("step", Phase.FORWARD, ops)}, (Call("step"),))


def test_kernels_of_one_shape_with_other_work_have_places_of_their_own_in_any_order() -> None:
    """On keys that are passed on around a ring the work is half: neither has the place of whichever came first."""
    found = []
    for ops in ((OWN, PASSED_ON), (PASSED_ON, OWN)):
        program = program_of(*ops)
        of_ops = dict(zip(map(id, program.distinct_ops.ops), ErrorClasses().of_distinct(program), strict=True))
        found.append([of_ops[id(op)] for op in (OWN, PASSED_ON)])
    assert found[0] == found[1]
    assert found[0][0].place != found[0][1].place


def test_the_slowest_call_of_a_class_counts_where_alike_ops_wait_for_their_launch() -> None:
    """Of ops that are alike, the first in a task may wait for the host, and the last not."""
    plan = dense_plan(model=GPT | {"num_layers": 2}, m=2)
    pricing = replace(pricing_on("dgx-a100-80g", plan.mesh.size), software=Software(launch_s=3e-6, task_launch_s=5e-5))
    run, classes = simulate(plan, pricing), ErrorClasses()
    every: dict[ErrorClass, list[float]] = {}
    for rank, program in run.programs.items():
        for name, priced in run.priced[rank].items():
            for place, activity in zip(program.distinct_ops.of_task[name], priced.activities, strict=True):
                every.setdefault(classes.of_distinct(program)[place], []).append(activity.duration_s)
    assert any(times_s[-1] < max(times_s) for times_s in every.values())
    assert classes.predicted_s(run) == {of: max(times_s) for of, times_s in every.items()}
