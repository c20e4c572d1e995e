"""Broken plans are refused, and the message names role, stream, op and peer."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.errors import CheckError, LayoutError, PlanError
from sim.plan.facts.namesakes import sharing_tasks
from sim.plan.functions.linear import linear
from sim.plan.functions.tracing import ProgramTracer, TaskTracer
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.calls import Calls
from sim.plan.words.layout import PARTIAL, REPLICATED, Layout, Shard
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from tests.examples import examples
from tests.sim.jobs import GPT, dense_plan, pricing_on
from tests.sim.strategies import bare_ended_plans, dense_plans

COPY = Compute("copy", "copy", ("x",), ("y",))


def with_program(plan: Plan, index: int, **changes: Any) -> Plan:
    """Return the plan with one program changed."""
    programs = list(plan.programs)
    programs[index] = replace(programs[index], **changes)
    return replace(plan, programs=tuple(programs))


def with_ops(plan: Plan, index: int, task: str, change: Callable[[tuple[Op, ...]], tuple[Op, ...]]) -> Plan:
    """Return the plan with the ops of one task of one program changed."""
    tasks = dict(plan.programs[index].tasks)
    tasks[task] = replace(tasks[task], ops=change(tasks[task].ops))
    return with_program(plan, index, tasks=tasks)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return a plan with every kind of op: tp2, pp2, dp2, tied embeddings."""
    return dense_plan(tp=2, pp=2, dp=2, m=2)


def test_whole_plan_passes(plan: Plan) -> None:
    """What the builder makes is valid."""
    check(plan)


def test_ranks_without_a_program_are_refused(plan: Plan) -> None:
    """Every rank needs one program, and only one."""
    with pytest.raises(CheckError, match="1 programs do not cover each of 8 ranks once"):
        check(replace(plan, programs=plan.programs[:1]))
    with pytest.raises(CheckError, match="3 programs do not cover each of 8 ranks once"):
        check(replace(plan, programs=(*plan.programs, plan.programs[0])))


def test_call_of_an_unknown_task_is_refused(plan: Plan) -> None:
    """A call names a task of its program."""
    calls = (*plan.programs[1].calls, Call("forward.9", 0))
    with pytest.raises(CheckError, match=r"role pp=1: call of unknown task 'forward\.9'"):
        check(with_program(plan, 1, calls=calls))


def test_of_several_unknown_tasks_the_first_call_is_named(plan: Plan) -> None:
    """Whatever the order of names in the columns of calls."""
    calls = Calls.of([Call("second"), Call("first")])[::-1]
    assert calls.names == ("second", "first")
    with pytest.raises(CheckError, match="call of unknown task 'first'"):
        check(with_program(plan, 0, calls=calls))


def test_task_without_ops_is_refused(plan: Plan) -> None:
    """Called or not, a task has an op."""
    expected = r"role pp=1: task '{}' has no ops; leave it out, and its calls"
    with pytest.raises(CheckError, match=expected.format("forward.1")):
        check(with_ops(plan, 1, "forward.1", lambda ops: ()))
    tasks = {**plan.programs[1].tasks, "nothing": Task("nothing", Phase.PREPARE, ())}
    with pytest.raises(CheckError, match=expected.format("nothing")):
        check(with_program(plan, 1, tasks=tasks))


@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=dense_plans() | bare_ended_plans())
def test_no_task_of_a_plan_is_empty(plan: Plan) -> None:
    """Whatever is trained how: every task has ops and is called, every call has a task, and the plan runs."""
    for program in plan.programs:
        assert all(task.ops for task in program.tasks.values())
        assert {call.task for call in program.calls} == program.tasks.keys()
    check(plan)
    assert simulate(plan, pricing_on("hgx-h100", plan.mesh.size)).makespan_s > 0.0


def test_unknown_buffer_is_refused(plan: Plan) -> None:
    """An op names buffers of its program."""
    buffers = {name: b for name, b in plan.programs[0].buffers.items() if name != "layer0.qkv.split.q"}
    expected = r"role pp=0, stream 'compute', op 'layer0\.qkv\.split': unknown buffer 'layer0\.qkv\.split\.q'"
    with pytest.raises(CheckError, match=expected):
        check(with_program(plan, 0, buffers=buffers))


def test_programs_that_share_tasks_have_the_same_buffers() -> None:
    """One of them may not lack a buffer, nor have another one of its name; equal buffers need not be one object."""
    plan = sharing_tasks(dense_plan(pp=4, m=4, model=GPT | {"tied_embeddings": False}))
    assert plan.programs[1].tasks is plan.programs[2].tasks
    buffers = dict(plan.programs[2].buffers)
    check(with_program(plan, 2, buffers=buffers))
    name = next(name for name, buffer in buffers.items() if buffer.kind is Kind.PARAMETER)
    refused = f"role pp=1 and role pp=2 share tasks, but do not have the same buffer '{name}'"
    for other in ({}, {name: replace(buffers[name], shape=(1,))}):
        changed = {each: buffer for each, buffer in buffers.items() if each != name} | other
        with pytest.raises(CheckError, match=refused):
            check(with_program(plan, 2, buffers=changed))


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"kernel": "matmull"}, "unknown kernel 'matmull'"),
        ({"kernel": "sgd_piece"}, "kernel 'sgd_piece' cannot do this work; it reads "),
        ({"reads": ()}, "kernel 'matmul' cannot do this work"),
        ({"attributes": {"contract": "x"}}, "cannot do this work; .* has the attributes {'contract': 'x'}"),
    ],
)
def test_kernels_that_do_not_fit_are_refused(plan: Plan, changes: dict[str, Any], refused: str) -> None:
    """A kernel that is not known, or has no cost for its buffers and attributes, is no error of prices."""

    def change(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        place = next(place for place, op in enumerate(ops) if isinstance(op, Compute) and op.kernel == "matmul")
        return (*ops[:place], replace(ops[place], **changes), *ops[place + 1 :])

    with pytest.raises(CheckError, match=f"role pp=0, stream 'compute', op '.*': .*{refused}"):
        check(with_ops(plan, 0, "forward.0", change))


def test_an_unknown_element_type_is_refused(plan: Plan) -> None:
    """The message names the buffer."""
    buffers = dict(plan.programs[0].buffers)
    name = next(iter(buffers))
    with pytest.raises(CheckError, match=f"role pp=0: buffer '{name}' has elements of the unknown type 'float31'"):
        check(with_program(plan, 0, buffers=buffers | {name: replace(buffers[name], dtype="float31")}))


@pytest.mark.parametrize(("kind", "task"), [(Collective, "gradient_sync.0"), (Send, "send_forward.0")])
def test_an_unknown_axis_is_refused(plan: Plan, kind: type[Op], task: str) -> None:
    """Neither collectives nor messages go along an axis that the mesh does not have."""
    changes = {"axes": ("ddp",)} if kind is Collective else {"axis": "ddp"}

    def change(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(replace(op, **changes) if isinstance(op, kind) else op for op in ops)

    with pytest.raises(CheckError, match="unknown axis 'ddp'; the mesh has dp, pp, tp"):
        check(with_ops(plan, 0, task, change))


def test_dead_op_is_refused(plan: Plan) -> None:
    """An op of which nothing reads the result takes time and changes nothing; the message names it and its task."""
    dead = Compute("idle", "gelu", ("layer0.fc1",), ("idle",))
    broken = with_ops(plan, 0, "forward.0", lambda ops: (*ops, dead))
    buffers = dict(plan.programs[0].buffers)
    buffers["idle"] = replace(buffers["layer0.fc1"], name="idle")
    expected = "role pp=0, stream 'compute', op 'idle' of task 'forward.0' is dead: nothing reads idle"
    with pytest.raises(CheckError, match=expected):
        check(with_program(broken, 0, buffers=buffers))


def test_collective_whose_sum_nobody_reads_is_refused(plan: Plan) -> None:
    """A sum among ranks of one role is dead where no op of their program reads it."""
    x = plan.programs[0].buffers["layer0.fc1"]
    summed = Collective("idle", CollectiveKind.ALL_REDUCE, ("tp",), (x.name,), (x.name,), "tp")
    broken = with_ops(plan, 0, "backward.0", lambda ops: (*ops, summed))
    with pytest.raises(CheckError, match=r"op 'idle' of task 'backward.0' is dead: nothing reads layer0\.fc1"):
        check(broken)


def test_read_before_write_is_refused(plan: Plan) -> None:
    """Moving a task's first op to its end leaves its readers without input."""
    broken = with_ops(plan, 0, "forward.0", lambda ops: (*ops[1:], ops[0]))
    expected = "role pp=0, stream 'compute', op 'embedding': reads 'tokens' of micro-batch 0"
    with pytest.raises(CheckError, match=expected):
        check(broken)


def test_backward_before_its_forward_is_refused(plan: Plan) -> None:
    """Calls in the wrong order read what nobody has written for that micro-batch."""
    calls = tuple(plan.programs[1].calls)
    swap = {"forward.1": "backward.1", "backward.1": "forward.1"}
    moved = tuple(call._replace(task=swap.get(call.task, call.task)) for call in calls)
    expected = r"role pp=1, stream .* of micro-batch 0 in task 'backward\.1' before anything writes it"
    with pytest.raises(CheckError, match=expected):
        check(with_program(plan, 1, calls=moved))


def test_missing_message_is_refused(plan: Plan) -> None:
    """A send without its receive names both roles, the axis and both counts."""
    calls = [call for call in plan.programs[1].calls if call != Call("send_backward.1", 0)]
    expected = "role pp=0 receives 2 backward messages along 'pp' and its peer, role pp=1, sends 1"
    with pytest.raises(CheckError, match=expected):
        check(with_program(plan, 1, calls=tuple(calls)))


def test_messages_in_another_order_are_refused(plan: Plan) -> None:
    """The k-th send meets the k-th receive, of the same micro-batch."""
    others = [call for call in plan.programs[1].calls if call.task != "send_backward.1"]
    calls = (*others, Call("send_backward.1", 1), Call("send_backward.1", 0))
    with pytest.raises(CheckError) as caught:
        check(with_program(plan, 1, calls=calls))
    assert "role pp=0, stream 'pp_recv_backward', op 'recv_backward.0' of micro-batch 0" in str(caught.value)
    assert "role pp=1, stream 'pp_send_backward', op 'send_backward.1' of micro-batch 1" in str(caught.value)


def test_messages_of_one_channel_on_two_streams_are_refused(plan: Plan) -> None:
    """Nothing keeps messages of two streams in order: which send meets which receive would be chance."""

    def sent_twice(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        [send] = [op for op in ops if isinstance(op, Send)]
        return (send, replace(send, name="again", stream="another"))

    def received_twice(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        [receive] = [op for op in ops if isinstance(op, Recv)]
        return (receive, replace(receive, name="again"))

    twice = with_ops(with_ops(plan, 0, "send_forward.0", sent_twice), 1, "recv_forward.1", received_twice)
    with pytest.raises(CheckError, match="stream 'another', op 'again': shares a channel along 'pp' with role pp=0"):
        check(twice)


def test_message_of_another_size_is_refused(plan: Plan) -> None:
    """Sender and receiver agree on the bytes."""
    buffers = dict(plan.programs[1].buffers)
    buffers["input.1"] = replace(buffers["input.1"], dtype="float64")
    expected = r"op 'send_forward\.0' of micro-batch 0 \(4096 bytes\) meets .*\(16384 bytes\)"
    with pytest.raises(CheckError, match=expected):
        check(with_program(plan, 1, buffers=buffers))


def test_collective_that_one_role_leaves_out_is_refused(plan: Plan) -> None:
    """The tied embedding is summed by the first and the last stage, or by neither."""
    task = next(t.name for t in plan.programs[1].tasks.values() if any(op.name == "tie" for op in t.ops))
    broken = with_ops(plan, 1, task, lambda ops: tuple(op for op in ops if op.name != "tie"))
    expected = r"on stream 'embedding' role pp=0, stream 'embedding', op 'tie' meets nothing of role pp=1"
    with pytest.raises(CheckError, match=expected):
        check(broken)


def test_collectives_of_different_kinds_are_refused(plan: Plan) -> None:
    """A group issues the same collectives in the same order."""
    task = next(t.name for t in plan.programs[1].tasks.values() if any(op.name == "tie" for op in t.ops))

    def broadcast(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(
            replace(op, kind=CollectiveKind.BROADCAST) if isinstance(op, Collective) and op.name == "tie" else op
            for op in ops
        )

    expected = "op 'tie' meets role pp=1, stream 'embedding', op 'tie'; a group must issue the same"
    with pytest.raises(CheckError, match=expected):
        check(with_ops(plan, 1, task, broadcast))


def test_all_reduce_out_of_place_is_refused(plan: Plan) -> None:
    """An all_reduce writes what it reads."""

    def elsewhere(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        first = next(i for i, op in enumerate(ops) if isinstance(op, Collective))
        broken = replace(ops[first], writes=("positions",))
        return (*ops[:first], broken, *ops[first + 1 :])

    expected = r"role pp=0, stream 'tp', op .*: an all_reduce works in place, got \('embedding',\)"
    with pytest.raises(CheckError, match=expected):
        check(with_ops(plan, 0, "forward.0", elsewhere))


def test_gather_of_two_buffers_along_a_dimension_is_refused() -> None:
    """Along a dimension one buffer moves."""
    plan = dense_plan(tp=2, sequence_parallel=True)

    def two(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        at = next(i for i, op in enumerate(ops) if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_GATHER)
        return (*ops[:at], replace(ops[at], reads=(*ops[at].reads, "tokens")), *ops[at + 1 :])

    with pytest.raises(CheckError, match="along a dimension one buffer moves"):
        check(with_ops(plan, 0, "forward.0", two))


@settings(max_examples=examples(24), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=dense_plans(), data=st.data())
def test_dropping_any_message_call_is_refused(plan: Plan, data: st.DataObject) -> None:
    """No send or receive of a random plan can be left out unnoticed."""
    messages = [
        (p, c)
        for p, program in enumerate(plan.programs)
        for c, call in enumerate(program.calls)
        if program.tasks[call.task].phase in (Phase.SEND, Phase.RECV)
    ]
    if not messages:
        return
    p, c = data.draw(st.sampled_from(messages))
    calls = tuple(plan.programs[p].calls)
    with pytest.raises(CheckError):
        check(with_program(plan, p, calls=calls[:c] + calls[c + 1 :]))


@settings(max_examples=examples(24), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=dense_plans(), data=st.data())
def test_dropping_any_op_that_others_read_is_refused(plan: Plan, data: st.DataObject) -> None:
    """No op of a forward or backward whose output somebody reads can be left out unnoticed."""
    program = data.draw(st.sampled_from(plan.programs))
    index = plan.programs.index(program)
    droppable = _only_writers(program)
    name, j = data.draw(st.sampled_from(droppable))
    with pytest.raises(CheckError):
        check(with_ops(plan, index, name, lambda ops: ops[:j] + ops[j + 1 :]))


def _only_writers(program: Program) -> list[tuple[str, int]]:
    """Return the ops that alone write a buffer which another op reads."""
    writers: dict[str, list[tuple[str, int]]] = {}
    readers: dict[str, set[tuple[str, int]]] = {}
    for task in program.tasks.values():
        for j, op in enumerate(task.ops):
            for name in op.writes:
                writers.setdefault(name, []).append((task.name, j))
            for name in op.reads:
                readers.setdefault(name, set()).add((task.name, j))
    return [
        places[0]
        for name, places in writers.items()
        if len(places) == 1 and program.buffers[name].scope != "persistent" and readers.get(name, set()) - {places[0]}
        and not isinstance(program.tasks[places[0][0]].ops[places[0][1]], Send | Recv)
    ]  # fmt: skip


# --- rules of the layouts, while a plan is written ---------------------------------------------------------


@pytest.fixture
def tracer() -> TaskTracer:
    """Return a tracer over tp=2."""
    return TaskTracer(ProgramTracer(Mesh((("tp", 2),)), "float32", "float32"))


def test_products_refuse_layouts_that_do_not_fit(tracer: TaskTracer) -> None:
    """A sharded input needs a weight sharded alike; a biased partial product would add the bias twice."""
    program = tracer.program
    rows = program.parameter("rows", (8, 4), Layout((("tp", Shard(0)),)), "normal")
    whole = program.parameter("whole", (8, 4), REPLICATED, "normal")
    bias = program.parameter("bias", (4,), REPLICATED, "zeros")
    x = program.tensor(Buffer("x", (2, 1, 8), "float32", Kind.ACTIVATION))
    sliced = program.tensor(Buffer("sliced", (2, 1, 4), "float32", Kind.ACTIVATION), Layout((("tp", Shard(2)),)))
    with pytest.raises(LayoutError, match="x must be sharded over 'tp' as rows is"):
        linear(tracer, "a", x, rows)
    with pytest.raises(LayoutError, match=r"sliced lies Shard.*over which whole is replicated"):
        linear(tracer, "b", sliced, whole)
    with pytest.raises(LayoutError, match="a bias added to a partial product would be added once per rank"):
        linear(tracer, "c", sliced, rows, bias)
    assert linear(tracer, "d", sliced, rows).layout == Layout((("tp", PARTIAL),))


def test_task_without_ops_is_not_added(tracer: TaskTracer) -> None:
    """A builder leaves out what has nothing to do."""
    with pytest.raises(PlanError, match="task 't' has no ops"):
        tracer.program.add_task("t", Phase.FORWARD, tracer.ops)
    assert not tracer.program.tasks


def test_names_are_taken_once(tracer: TaskTracer) -> None:
    """Buffers and tasks have distinct names; ops of one name are numbered."""
    program = tracer.program
    program.add_buffer(Buffer("x", (1,), "float32", Kind.ACTIVATION))
    with pytest.raises(PlanError, match="buffer 'x' is defined twice"):
        program.add_buffer(Buffer("x", (1,), "float32", Kind.ACTIVATION))
    program.add_task("t", Phase.FORWARD, [COPY])
    with pytest.raises(PlanError, match="task 't' is defined twice"):
        program.add_task("t", Phase.FORWARD, [COPY])
    assert [tracer.unique("op"), tracer.unique("op"), tracer.unique("other")] == ["op", "op.2", "other"]
