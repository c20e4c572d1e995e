"""Checks of a whole plan before it runs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from sim.integers import Integers, narrowed
from sim.plan.checking.collectives import check_collective, check_groups, depends_on_place, where
from sim.plan.checking.kernels import check_kernels
from sim.plan.checking.uses import check_uses
from sim.plan.errors import CheckError
from sim.plan.facts.repetition import CodedCalls, KnownCalls
from sim.plan.words.buffer import BYTES_PER_ELEMENT, Scope, Tier
from sim.plan.words.calls import Calls
from sim.plan.words.op import Channel, Collective, Compute, Copy, Op, Recv, Send, channel_of
from sim.plan.words.program import Call, Plan, Program, Task
from sim.plan.words.steps import drain, first_step, longest_lag
from sim.plan.words.touches import NEVER, Ints

_INSTANCED = (Scope.MICROBATCH, Scope.STEP)
"""Scopes of buffers that have no content before the first write."""


_ON_DEVICE: Final = {Tier.DEVICE}

_Sizes = dict[Channel, tuple[int, ...]]
"""The bytes of a task's messages by channel, in order."""

_Numbers = tuple[list[int], Integers]
"""The tasks that use a channel, and a number by task for the bytes of a call's messages."""

_Sequence = tuple[Integers, Integers, Integers]
"""Messages of a channel by call: micro-batches, lags, and numbers for the bytes."""


class _Message(NamedTuple):
    """One end of a message: its op, the call that issues it, its size in bytes."""

    op: Send | Recv
    call: Call
    num_bytes: int


def check(plan: Plan) -> None:
    """Raise CheckError, with role, stream, op and peer, if a plan breaks a rule.

    The rules:

    * Every rank has one program, and every task has an op.
    * Ops name buffers, element types, axes and kernels that exist. The buffers of an op are in one tier of memory,
      except those of a copy. Kernels can work on their buffers.
    * Programs that share tasks have equal buffers.
    * Nothing is read before it is written, and no op is dead (see ``check_uses``).
    * Sends match receives in order, micro-batch and size. Messages of one channel share a stream, so none overtakes
      another.
    * A collective's buffers fit its kind. The members of a group issue the same collectives in the same order.
    * Ops that meet complete the same step. So the rules also hold for the first step of a run and for its drain.

    A cycle between ranks is no error here; it shows as a deadlock when the plan runs. What follows from tasks alone is
    checked once for programs that share them.
    """
    _check_roles(plan)
    coded, known_calls = dict[int, CodedCalls](), KnownCalls()
    by_place = dict[int, list[Collective]]()
    known, passed, kernels = dict[int, Program](), set[tuple[object, ...]](), set[tuple[object, ...]]()
    for program in plan.programs:
        _check_tasks(program)
        _check_lags(program)
        calls = coded[id(program)] = known_calls.of(program)
        if (first := known.setdefault(id(program.tasks), program)) is program:
            _check_buffers(program)
            _check_axes(plan, program)
            check_kernels(program, kernels)
            collectives = [op for op in program.distinct_ops.ops if isinstance(op, Collective)]
            by_place[id(program.tasks)] = [op for op in collectives if depends_on_place(op)]
        elif first.buffers is not program.buffers and first.buffers != program.buffers:
            _refuse_other_buffers(first, program)
        for op in collectives if first is program else by_place[id(program.tasks)]:
            check_collective(plan, program, op)
        if (kind := _kind(program, calls)) not in passed:
            _check_reads(program, calls)
            check_uses(program, calls)
            passed.add(kind)
    if any(longest_lag(program) for program in plan.programs):
        for program in (*first_step(plan).programs, *drain(plan).programs):
            calls = known_calls.of(program)
            if (kind := _kind(program, calls)) not in passed:
                _check_reads(program, calls)
                passed.add(kind)
    _check_messages(plan, coded)
    check_groups(plan)


def _kind(program: Program, calls: CodedCalls) -> tuple[object, ...]:
    """Return what is equal for programs that break the same rules about reads and uses."""
    return id(program.tasks), tuple(program.role), calls.outline


def _check_lags(program: Program) -> None:
    lags = Calls.of(program.calls).lags
    if lags.min(initial=0) < 0 or lags.max(initial=0) > 1:
        wrong = next(call for call in program.calls if call.lag not in {0, 1})
        raise CheckError(
            f"role {program.role_name}: call of {wrong.task!r} completes the step {wrong.lag} before its own; "
            "it can be that step's, or the one before's"
        )


def _check_roles(plan: Plan) -> None:
    owners = np.zeros(plan.mesh.size, np.int64)
    for program in plan.programs:
        owners[plan.rank_array_of(program)] += 1
    if (owners != 1).any():
        raise CheckError(
            f"plan {plan.name!r}: {len(plan.programs)} programs do not cover each of {plan.mesh.size} ranks once"
        )


def _check_tasks(program: Program) -> None:
    """Raise CheckError unless every call names a task of the program, and every task has an op."""
    calls = Calls.of(program.calls)
    if not program.tasks.keys() >= set(calls.called()):
        unknown = next(name for name in calls.first_calls if name not in program.tasks)
        raise CheckError(f"role {program.role_name}: call of unknown task {unknown!r}")
    for name, task in program.tasks.items():
        if not task.ops:
            raise CheckError(f"role {program.role_name}: task {name!r} has no ops; leave it out, and its calls")


def _check_buffers(program: Program) -> None:
    """Raise CheckError where an op names a buffer that does not exist, or those of tiers that it cannot use.

    And where a buffer has elements of a type that does not exist.
    """
    if not BYTES_PER_ELEMENT.keys() >= {buffer.dtype for buffer in program.buffers.values()}:
        name, wrong = next(found for found in program.buffers.items() if found[1].dtype not in BYTES_PER_ELEMENT)
        raise CheckError(f"role {program.role_name}: buffer {name!r} has elements of the unknown type {wrong.dtype!r}")
    tier_of = {name: buffer.tier for name, buffer in program.buffers.items()}
    for op in program.distinct_ops.ops:
        tiers = set(map(tier_of.get, op.reads + op.writes))
        if None in tiers:
            unknown = next(name for name in op.reads + op.writes if name not in tier_of)
            raise CheckError(f"{where(program, op)}: unknown buffer {unknown!r}")
        if tiers != _ON_DEVICE or isinstance(op, Copy):
            _check_tiers(program, op)


def _check_axes(plan: Plan, program: Program) -> None:
    """Raise CheckError where an op communicates along an axis that the mesh does not have."""
    names = {name for name, _ in plan.mesh.axes}
    for op in program.distinct_ops.ops:
        axes = op.axes if isinstance(op, Collective) else (op.axis,) if isinstance(op, Send | Recv) else ()
        if not names.issuperset(axes):
            unknown = next(axis for axis in axes if axis not in names)
            raise CheckError(f"{where(program, op)}: unknown axis {unknown!r}; the mesh has {', '.join(sorted(names))}")


def _refuse_other_buffers(first: Program, program: Program) -> None:
    """Raise CheckError for the first buffer that two programs of the same tasks do not have alike."""
    one, other = first.buffers, program.buffers
    name = next(name for name in (*one, *other) if one.get(name) != other.get(name))
    roles = f"role {first.role_name} and role {program.role_name}"
    raise CheckError(f"{roles} share tasks, but do not have the same buffer {name!r}")


def _check_tiers(program: Program, op: Op) -> None:
    """Raise CheckError unless a copy goes from one tier to another, and every other op but a wait uses one tier."""
    if isinstance(op, Compute) and not op.writes:
        return
    reads, writes = ([program.buffers[name] for name in names] for names in (op.reads, op.writes))
    sources, targets = {buffer.tier for buffer in reads}, {buffer.tier for buffer in writes}
    if isinstance(op, Copy):
        sizes = [sum(buffer.num_elements for buffer in buffers) for buffers in (reads, writes)]
        if len(sources) != 1 or len(targets) != 1 or sources == targets:
            raise CheckError(f"{where(program, op)}: a copy goes from one tier of memory to another one")
        if sources | targets == {Tier.DEVICE, Tier.NVME}:
            raise CheckError(f"{where(program, op)}: drives are read and written by way of the host's memory")
        if sizes[0] != sizes[1] or len({buffer.dtype for buffer in (*reads, *writes)}) != 1:
            raise CheckError(
                f"{where(program, op)}: copies {sizes[0]} elements to {sizes[1]}; they are as many, of one type"
            )
    elif len(sources | targets) > 1:
        raise CheckError(f"{where(program, op)}: buffers lie in several tiers of memory; copy them to one first")
    elif Tier.NVME in sources | targets:
        raise CheckError(f"{where(program, op)}: nothing computes on drives; copy buffers to the host first")
    elif Tier.HOST in sources | targets and not isinstance(op, Compute):
        raise CheckError(f"{where(program, op)}: ranks communicate from the memory of their devices")


def _check_reads(program: Program, coded: CodedCalls) -> None:
    """Raise CheckError where an op reads what nothing has written before (see ``_check_instances``)."""
    uses = program.touches.uses
    for scope in _INSTANCED:
        is_of_scope = program.touches.is_of[scope][uses.buffer]
        needs = uses.by_task(is_of_scope & uses.reads_first)
        gives = uses.by_task(is_of_scope & (uses.last_write != NEVER))
        _check_instances(program, coded, scope, needs, gives)


def _check_instances(
    program: Program, coded: CodedCalls, scope: Scope, needs: Sequence[Ints], gives: Sequence[Ints]
) -> None:
    """Raise CheckError for a read of a buffer of one scope that nothing has written for its micro-batch, or its step.

    ``needs``, ``gives``: the buffers that each task reads before it writes them, and those that it writes. Of
    micro-batches with equal sequences of calls one is checked, and of each task the first call, which finds least.
    """
    if not any(map(len, needs)):
        return
    wrong: list[tuple[int, Ints]] = []
    for calls in coded.sequences if scope is Scope.MICROBATCH else [coded.every]:
        is_written = np.zeros(len(program.buffers), np.bool_)
        for index in coded.first_of_tasks(calls):
            task = coded.tasks[index]
            needed = needs[task]
            if not is_written[needed].all():
                wrong.append((index, needed[~is_written[needed]]))
                break
            is_written[gives[task]] = True
    if wrong:
        _refuse_read(program, *min(wrong, key=itemgetter(0)))


def _refuse_read(program: Program, index: int, missing: Ints) -> None:
    """Raise CheckError for the first read, in a call, of buffers that nothing has written."""
    task, microbatch, _ = program.calls[index]
    names = {[*program.buffers][buffer] for buffer in missing.tolist()}
    op, name = next((op, name) for op in program.tasks[task].ops for name in op.reads if name in names)
    raise CheckError(
        f"{where(program, op)}: reads {name!r} of micro-batch {microbatch} in task {task!r} before anything writes it"
    )


def _check_messages(plan: Plan, coded: Mapping[int, CodedCalls]) -> None:
    """Raise CheckError where messages do not match. ``coded``: the calls of each program, by its identity."""
    one_of, numbers = {id(program.tasks): program for program in plan.programs}, dict[tuple[int, ...], int]()
    program_of = cache(plan.program_of)
    channels = {key: _channels(program, numbers) for key, program in one_of.items()}
    sequences = {
        id(program): _call_by_call(channels[id(program.tasks)], coded[id(program)]) for program in plan.programs
    }
    for program in plan.programs:
        rank = plan.mesh.rank(program.role)
        for (axis, offset, direction, is_send), issued in sequences[id(program)].items():
            peer = program_of(plan.mesh.shift(rank, axis, offset))
            answers = sequences[id(peer)].get((axis, -offset, direction, not is_send))
            if answers is None or (is_send and not all(map(np.array_equal, issued, answers))):
                # the same messages may still be divided among calls in different ways
                _check_one_by_one(plan, coded)
                return
    crossed = {key for key, program in one_of.items() if not _are_on_one_stream_each(program)}
    for program in plan.programs:
        if id(program.tasks) in crossed:
            _check_streams(program, coded[id(program)])


def _call_by_call(channels: Mapping[Channel, _Numbers], coded: CodedCalls) -> dict[Channel, _Sequence]:
    """Return the messages of every channel by call. ``channels``: of the tasks that are called, and maybe more."""
    found: dict[Channel, _Sequence] = {}
    for channel, (tasks, numbers) in channels.items():
        parts = [coded.of_tasks[task] for task in tasks if task < len(coded.of_tasks)]
        calls = parts[0] if len(parts) == 1 else np.sort(np.concatenate([coded.every[:0], *parts]))
        if len(calls):
            of_calls = numbers.take(coded.tasks.take(calls))
            found[channel] = coded.microbatches.take(calls), coded.lags.take(calls), of_calls
    return found


def _channels(program: Program, numbers: dict[tuple[int, ...], int]) -> dict[Channel, _Numbers]:
    """Return the tasks that use each channel, and a number by task for the bytes of its messages.

    ``numbers``: those that are known; new ones join them.
    """
    of_tasks, found = _sizes(program), dict[Channel, _Numbers]()
    for channel in dict.fromkeys(channel for sizes in of_tasks for channel in sizes):
        number = [numbers.setdefault(sizes[channel], len(numbers)) if channel in sizes else -1 for sizes in of_tasks]
        found[channel] = [task for task, of_task in enumerate(number) if of_task >= 0], narrowed(np.array(number))
    return found


def _sizes(program: Program) -> list[_Sizes]:
    """Return the bytes of each task's messages by channel, in order."""
    distinct = program.distinct_ops
    message = {at: _message(program, op) for at, op in enumerate(distinct.ops) if isinstance(op, Send | Recv)}
    result = []
    for places in distinct.of_task.values():
        found: dict[Channel, list[int]] = defaultdict(list)
        for channel, num_bytes in [message[place] for place in places if place in message]:
            found[channel].append(num_bytes)
        result.append({channel: tuple(sizes) for channel, sizes in found.items()})
    return result


def _are_on_one_stream_each(program: Program) -> bool:
    """Return whether the messages of each channel are on one stream in all tasks of a program."""
    messages = [op for op in program.distinct_ops.ops if isinstance(op, Send | Recv)]
    return len({(op.stream, channel_of(op)) for op in messages}) == len({channel_of(op) for op in messages})


def _check_streams(program: Program, coded: CodedCalls) -> None:
    """Raise CheckError where messages of one channel are on several streams in tasks that are called."""
    first: dict[Channel, Send | Recv] = {}
    for index in coded.first_of_tasks(coded.every):
        for channel, op, _ in _messages(program, program.tasks[program.calls[index].task]):
            if op.stream != first.setdefault(channel, op).stream:
                rule = f"shares a channel along {op.axis!r} with {where(program, first[channel])}"
                raise CheckError(f"{where(program, op)}: {rule}; messages of one channel share a stream")


def _check_one_by_one(plan: Plan, coded: Mapping[int, CodedCalls]) -> None:
    """Raise CheckError for a message that meets one it does not match."""
    ends = {id(program): _by_channel(program) for program in plan.programs}
    for program in plan.programs:
        rank = plan.mesh.rank(program.role)
        for (axis, offset, direction, is_send), issued in ends[id(program)].items():
            peer = plan.program_of(plan.mesh.shift(rank, axis, offset))
            answers = ends[id(peer)].get((axis, -offset, direction, not is_send), [])
            verb, other = ("sends", "receives") if is_send else ("receives", "sends")
            if len(issued) != len(answers):
                raise CheckError(
                    f"role {program.role_name} {verb} {len(issued)} {direction} messages along {axis!r} and its "
                    f"peer, role {peer.role_name}, {other} {len(answers)}"
                )
            for mine, theirs in zip(issued, answers, strict=True):
                if _identity(mine) != _identity(theirs):
                    raise CheckError(_mismatch(program, peer, mine, theirs))
        _check_streams(program, coded[id(program)])


def _by_channel(program: Program) -> dict[Channel, list[_Message]]:
    channels: dict[Channel, list[_Message]] = defaultdict(list)
    messages = {name: list(_messages(program, task)) for name, task in program.tasks.items()}
    for call in program.calls:
        for channel, op, num_bytes in messages[call.task]:
            channels[channel].append(_Message(op, call, num_bytes))
    return channels


def _messages(program: Program, task: Task) -> Iterator[tuple[Channel, Send | Recv, int]]:
    """Yield the channel, the op and the size in bytes of every message that a task sends or receives."""
    for op in task.ops:
        if isinstance(op, Send | Recv):
            channel, num_bytes = _message(program, op)
            yield channel, op, num_bytes


def _message(program: Program, op: Send | Recv) -> tuple[Channel, int]:
    """Return the channel of a message, and its size in bytes."""
    return channel_of(op), sum(program.buffers[name].num_bytes for name in (*op.reads, *op.writes))


def _identity(message: _Message) -> tuple[int | None, int, int]:
    """Return the properties on which both ends of a message must agree."""
    return message.call.microbatch, message.call.lag, message.num_bytes


def _mismatch(program: Program, peer: Program, mine: _Message, theirs: _Message) -> str:
    (op, call, num_bytes), (answer, other, expected) = mine, theirs
    here, there = (" of the step before" if lag else "" for lag in (call.lag, other.lag))
    return (
        f"{where(program, op)} of micro-batch {call.microbatch}{here} ({num_bytes} bytes) meets {where(peer, answer)} "
        f"of micro-batch {other.microbatch}{there} ({expected} bytes)"
    )
