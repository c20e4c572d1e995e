"""Check for dead ops: their results are neither read by another op nor kept."""

from itertools import pairwise

import numpy as np

from sim.plan.checking.collectives import where
from sim.plan.errors import CheckError
from sim.plan.facts.repetition import CodedCalls
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.op import Collective, Compute, Op, Recv, Send
from sim.plan.words.program import Program
from sim.plan.words.touches import Flags
from sim.sorting import distinct_values

_ABSTRACT_WORK = "delay"


def check_uses(program: Program, coded: CodedCalls) -> None:
    """Raise CheckError, with task, stream, op and buffers, for an op that takes time and changes no result.

    An op is used if it writes nothing (a wait), or a persistent buffer, or a cache, which later tokens than the plan's
    may read, or a buffer that is read later: by an op of its task, or by a later call. Three kinds of op always count
    as used: a message, since its peer waits for it; a collective among several roles, since another role may need the
    result; and a ``delay`` kernel, which stands for time and has no values.
    """
    touches, uses, is_used = program.touches, program.touches.uses, _are_used_inside(program)
    is_open = touches.is_write & ~is_used[touches.op]
    begins = np.searchsorted(touches.op, touches.first_op)
    written = [begin + np.flatnonzero(is_open[begin:end]) for begin, end in pairwise(begins.tolist())]
    lagging = distinct_values(coded.tasks[coded.lags > 0]).tolist()
    for scope in (Scope.MICROBATCH, Scope.STEP):
        inputs = uses.by_task(touches.is_of[scope][uses.buffer] & uses.reads_first)
        for tasks in _sequences(coded, scope):
            is_awaited = np.zeros(touches.num_buffers + 1, np.bool_)
            for task in lagging:
                is_awaited[inputs[task]] = True
            for task in reversed(tasks):
                writes = written[task]
                is_used[touches.op[writes[is_awaited[touches.buffer[writes]]]]] = True
                is_awaited[inputs[task]] = True
    if not is_used.all():
        _refuse_dead(program, is_used)


def _refuse_dead(program: Program, is_used: Flags) -> None:
    """Raise CheckError for the last op that is not used of the first task that has one."""
    for task, (begin, end) in zip(program.tasks.values(), pairwise(program.touches.first_op.tolist()), strict=True):
        dead = np.flatnonzero(~is_used[begin:end])
        if len(dead):
            op = task.ops[dead[-1]]
            nobody = f"nothing reads {' or '.join(op.writes)}"
            raise CheckError(f"{where(program, op)} of task {task.name!r} is dead: {nobody}")


def _sequences(coded: CodedCalls, scope: Scope) -> list[list[int]]:
    """Return the sequences of tasks, by number, that are called on the same instances of a scope's buffers.

    Of each task the first call, for which most is awaited, and the last, before which the task's own inputs are.
    """
    sequences = []
    for calls in coded.sequences if scope is Scope.MICROBATCH else [coded.every]:
        outer = sorted({*coded.first_of_tasks(calls), *coded.first_of_tasks(calls[::-1])})
        sequences.append(coded.tasks[outer].tolist())
    return sequences


def _are_used_inside(program: Program) -> Flags:
    """Return which ops, of all tasks, count as used whatever other calls read."""
    touches, uses, distinct = program.touches, program.touches.uses, program.distinct_ops
    is_exempt = np.array([not op.writes or _is_exempt(program, op) for op in distinct.ops], np.bool_)
    is_used: Flags = is_exempt[distinct.places]
    is_cache = np.array([*(buffer.kind is Kind.CACHE for buffer in program.buffers.values()), False], np.bool_)
    is_kept = (touches.is_of[Scope.PERSISTENT] | is_cache)[touches.buffer]
    is_kept |= uses.last_read[uses.of_touch] > touches.op
    is_used[touches.op[touches.is_write & is_kept]] = True
    return is_used


def _is_exempt(program: Program, op: Op) -> bool:
    if isinstance(op, Collective):
        return not program.role.keys().isdisjoint(op.axes)
    return isinstance(op, Send | Recv) or (isinstance(op, Compute) and op.kernel == _ABSTRACT_WORK)
