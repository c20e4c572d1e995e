"""Hazards, lifetimes and memory of unrolled programs, against the rules applied literally."""

from random import Random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.torch.running.memory import account_memory
from backends.torch.running.schedule import OpInstance, Schedule, Slot, unroll
from costmodels.memory import allocated_bytes
from sim.engine.running.memory import memory_use
from sim.plan.words.buffer import BYTES_PER_ELEMENT, Buffer, Kind, Scope
from sim.plan.words.op import Compute, Direction, Send
from sim.plan.words.program import Call, Phase, Program, Task

NAMES = tuple("abcdefg")
STREAMS = ("one", "two", "three")


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a program: tasks called several times, in any order, over buffers of all scopes."""
    buffers = {
        name: Buffer(
            name,
            (draw(st.integers(1, 400)),),
            draw(st.sampled_from(["float64", "uint8"])),
            draw(st.sampled_from(list(Kind))),
            draw(st.sampled_from(list(Scope))),
        )
        for name in NAMES
    }
    some = st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple)
    tasks = {}
    for t in range(draw(st.integers(1, 3))):
        ops = [
            Compute(f"op{i}", "delay", draw(some), draw(some), {"duration_s": 0.0}, draw(st.sampled_from(STREAMS)))
            for i in range(draw(st.integers(1, 5)))
        ]
        tasks[f"task{t}"] = Task(f"task{t}", Phase.FORWARD, tuple(ops))
    call = st.builds(Call, st.sampled_from(sorted(tasks)), st.sampled_from([None, 0, 1]), lag=st.just(0))
    return Program({}, buffers, tasks, tuple(draw(st.lists(call, max_size=8))))


def unrolled(program: Program) -> Schedule:
    """Return a program's schedule, every slot counted as if filled."""
    persistent = {n: Slot(b, kept=True) for n, b in program.buffers.items() if b.scope is Scope.PERSISTENT}
    schedule = unroll(program, persistent)
    for slot in (*schedule.slots.values(), *persistent.values()):
        slot.num_bytes = slot.buffer.num_elements * BYTES_PER_ELEMENT[slot.buffer.dtype]
    for name, slot in persistent.items():
        schedule.slots.setdefault((name, None), slot)
    return schedule


def conflicts(a: OpInstance, b: OpInstance) -> bool:
    """Return whether one op writes what the other touches."""
    return any(w is x for w in a.writes for x in (*b.reads, *b.writes)) or any(
        w is x for w in b.writes for x in a.reads
    )


@settings(max_examples=100, deadline=None)
@given(programs())
def test_waits_order_every_pair_of_conflicting_ops(program: Program) -> None:
    """Waits and stream order together order each pair of ops of which one writes what the other touches."""
    instances = unrolled(program).instances
    before: list[set[int]] = []
    for instance in instances:
        direct = {
            *instance.waits,
            *(p.position for p in instances[: instance.position] if p.op.stream == instance.op.stream),
        }
        before.append(direct.union(*(before[p] for p in direct)) if direct else set())
    for later in instances:
        for earlier in instances[: later.position]:
            if conflicts(earlier, later):
                assert earlier.position in before[later.position]


@settings(max_examples=100, deadline=None)
@given(programs())
def test_waits_name_only_conflicting_ops_of_other_streams(program: Program) -> None:
    """Nothing is waited for without need."""
    instances = unrolled(program).instances
    for instance in instances:
        for position in instance.waits:
            assert instances[position].op.stream != instance.op.stream
            assert conflicts(instances[position], instance)


def test_a_send_is_waited_for_on_its_own_stream_too() -> None:
    """Its stream goes on before its message is gone; who writes its buffer must wait for that."""
    ops = (
        Send("send", "pp", 1, Direction.FORWARD, ("a",), "wire"),
        Compute("write", "delay", (), ("a",), {"duration_s": 0.0}, "wire"),
    )
    buffers = {"a": Buffer("a", (1,), "float64", Kind.WORKSPACE, Scope.PERSISTENT)}
    program = Program({}, buffers, {"t": Task("t", Phase.FORWARD, ops)}, (Call("t"),))
    assert [i.waits for i in unrolled(program).instances] == [(), (0,)]


def literal_curve(schedule: Schedule, program: Program) -> tuple[list[int], int]:
    """Return live bytes while each op runs, and after the last, by looking at every instance's first and last touch."""
    spans: dict[int, tuple[int, int]] = {}
    slots: dict[int, Slot] = {}
    for instance in schedule.instances:
        for slot in instance.touched:
            first, _ = spans.get(id(slot), (instance.position, 0))
            spans[id(slot)] = (first, instance.position)
            slots[id(slot)] = slot
    persistent = sum(allocated_bytes(b.num_bytes) for b in program.buffers.values() if b.scope is Scope.PERSISTENT)
    curve = np.full(len(schedule.instances), persistent)
    for key, (first, last) in spans.items():
        if slots[key].buffer.scope is not Scope.PERSISTENT:
            curve[first : last + 1] += allocated_bytes(slots[key].num_bytes)
    return curve.tolist(), persistent


@settings(max_examples=100, deadline=None)
@given(programs())
def test_memory_is_what_instances_between_first_and_last_touch_add_up_to(program: Program) -> None:
    """The account's peak, call by call and overall, is the literal one; kinds add up to it."""
    schedule = unrolled(program)
    account = account_memory(program, schedule.slots)
    curve, persistent = literal_curve(schedule, program)
    assert account.peak_bytes == max(curve, default=persistent)
    assert sum(account.peak_by_kind_bytes.values()) == account.peak_bytes
    assert account.after_bytes == persistent
    first = 0
    for index, call in enumerate(program.calls):
        last = first + len(program.tasks[call.task].ops)
        assert account.most_bytes[index] == max([account.before_bytes[index], *curve[first:last]])
        first = last


@settings(max_examples=100, deadline=None)
@given(programs())
def test_the_simulated_memory_is_the_interpreters_account(program: Program) -> None:
    """Peak, its kinds, and each call's bytes before and at most are equal, whatever a program reads and writes."""
    account, use = account_memory(program, unrolled(program).slots), memory_use(program)
    assert account.peak_bytes == use.peak_bytes
    assert dict(account.peak_by_kind_bytes) == dict(use.peak_by_kind_bytes)
    assert account.before_bytes == use.before_bytes.tolist()
    assert account.most_bytes == use.peak_bytes_of.tolist()
    assert account.most_at_op == use.peak_op_of.tolist()
    assert account.after_bytes == use.after_bytes


@settings(max_examples=100, deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_instances_keep_their_memory_until_all_their_ops_are_done(program: Program, random: Random) -> None:
    """In whatever order streams finish their ops, a slot is empty once all that touch it are done, and not before."""
    schedule = unrolled(program)
    for slot in schedule.slots.values():
        slot.tensor = torch.zeros(1)
    pending = list(schedule.instances)
    random.shuffle(pending)
    while pending:
        schedule.release(pending.pop())
        needed = {slot for instance in pending for slot in instance.touched}
        for slot in schedule.slots.values():
            assert (slot.tensor is not None) == (slot.kept or slot in needed)
