"""Programs that are equal but for names share tasks, and a plan of such programs runs as the plan itself does."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from sim.engine.findings.timeline import folded_timeline
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.errors import CheckError
from sim.plan.facts.namesakes import sharing_tasks
from sim.plan.facts.work_shares import work_shares
from sim.plan.words.buffer import Tier
from sim.plan.words.calls import Calls
from sim.plan.words.op import Compute
from sim.plan.words.program import Plan, Program
from sim.training.data.axes import SAMPLE_AXES
from tests.examples import examples
from tests.sim.jobs import GPT, dense_plan, pricing_on
from tests.sim.strategies import dense_keys

MODEL = GPT | {"num_layers": 8}
pipeline_plan = partial(dense_plan, pp=4, m=8, schedule="1f1b", model=MODEL)


def groups(plan: Plan) -> list[int]:
    """Return of each program the first one that has the same tasks."""
    tasks = [id(program.tasks) for program in plan.programs]
    return [tasks.index(own) for own in tasks]


def with_changed_op(program: Program, task: str, **changes: object) -> Program:
    """Return a program in which the first kernel of a task is another one."""
    first, *rest = program.tasks[task].ops
    assert isinstance(first, Compute)
    changed = replace(program.tasks[task], ops=(replace(first, **changes), *rest))
    return replace(program, tasks={**program.tasks, task: changed})


def test_stages_between_first_and_last_share_tasks_and_keep_their_names() -> None:
    """A stage in the middle has the tasks of the first such stage, and its own names for them and for their ops."""
    plan = pipeline_plan()
    shared = sharing_tasks(plan)
    assert groups(shared) == [0, 1, 1, 3]
    for before, after in zip(plan.programs, shared.programs, strict=True):
        named = [after.named(name) for name in after.tasks]
        assert named == [*before.tasks.values()]
        assert [after.named(call.task).name for call in after.calls] == [call.task for call in before.calls]
    assert sharing_tasks(shared) == shared


@pytest.mark.parametrize("changes", [{"kernel": "gelu"}, {"stream": "dp"}, {"attributes": {"eps": 1.0}}, {"reads": ()}])
def test_a_stage_that_differs_in_one_op_shares_nothing(changes: dict[str, object]) -> None:
    """Another kernel, stream, attribute or buffer of a single op makes another program."""
    plan = pipeline_plan()
    programs = [*plan.programs]
    programs[2] = with_changed_op(programs[2], "forward.2", **changes)
    assert groups(sharing_tasks(replace(plan, programs=tuple(programs)))) == [0, 1, 2, 3]


def test_a_stage_with_a_buffer_of_another_type_shares_nothing() -> None:
    """Buffers are compared as well as ops."""
    plan = pipeline_plan()
    programs = [*plan.programs]
    name, buffer = next(iter(programs[2].buffers.items()))
    programs[2] = replace(programs[2], buffers={**programs[2].buffers, name: replace(buffer, dtype="float64")})
    assert groups(sharing_tasks(replace(plan, programs=tuple(programs)))) == [0, 1, 2, 3]


def test_an_error_in_one_of_several_equal_stages_has_its_names() -> None:
    """A stage that never receives its input is told by its own role and buffer, though it shares another's tasks."""
    plan = pipeline_plan()
    programs = [*plan.programs]
    calls = Calls.of(programs[2].calls).without(["recv_forward.2"])
    programs[2] = replace(programs[2], calls=calls)
    with pytest.raises(CheckError, match=r"role pp=2, .*reads 'input\.2'"):
        SimulatedBackend(pricing_on("hgx-h100", 4)).simulate(replace(plan, programs=tuple(programs)))


def facts(run: SimulatedRun) -> list[object]:
    """Return what a run says of the memory, the times and the purposes of its ranks' ops."""
    shares = dict(zip(map(id, run.plan.programs), work_shares(run.plan, SAMPLE_AXES), strict=True))
    return [
        [
            [run.memory_of(rank, tier).peak_by_kind_bytes for tier in Tier],
            run.memory_of(rank).peak_bytes_of.tolist(),
            [*shares[id(run.plan.program_of(rank))].values()],
            [(times.starts_s.tolist(), times.ends_s.tolist()) for times in run.task_times(rank)],
        ]
        for rank in run.programs
    ]


def rows(run: SimulatedRun) -> list[object]:
    """Return the names, stages, sizes and times of the rows of a run's timeline."""
    found = folded_timeline(run)
    names = map(found.name.at, range(len(found)))
    return [*zip(names, *(c.tolist() for c in (found.stage, found.bytes, found.start_s, found.end_s)), strict=True)]


@settings(max_examples=examples(6), deadline=None)
@given(keys=dense_keys(8, 3))
def test_a_plan_runs_as_it_does_without_shared_tasks(keys: dict[str, Any]) -> None:
    """Times, memory and purposes of all ops are the same to the last bit, and so are the rows of the timeline."""
    plan = dense_plan(**keys)
    pricing = pricing_on("hgx-h100", plan.mesh.size)
    shared, apart = (simulate(each, pricing) for each in (sharing_tasks(plan), plan))
    assert facts(shared) == facts(apart)
    assert rows(shared) == rows(apart)
