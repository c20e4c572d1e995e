"""Check for dead ops: their results are neither read by another op nor kept."""

from collections.abc import Collection, Mapping

from sim.plan.checking.collectives import where
from sim.plan.errors import CheckError
from sim.plan.facts.repetition import CodedCalls
from sim.plan.words.buffer import Scope
from sim.plan.words.op import Collective, Compute, Op, Recv, Send
from sim.plan.words.program import Program, Task
from sim.sorting import distinct_values

_ABSTRACT_WORK = "delay"


def check_uses(program: Program, coded: CodedCalls, read: Mapping[str, Collection[str]]) -> None:
    """Raise CheckError, with task, stream, op and buffers, for an op that takes time and changes no result.

    An op is used if it writes nothing (a wait), or a persistent buffer, or a buffer that is read later: by an op of its
    task, or by a later call. Three kinds of op always count as used: a message, since its peer waits for it; a
    collective among several roles, since another role may need the result; and a ``delay`` kernel, which stands for
    time and has no values. ``read``: by task, the buffers that it reads before it writes them.
    """
    unread, names = {name: _unread(program, task) for name, task in program.tasks.items()}, [*program.tasks]
    lagging = [names[task] for task in distinct_values(coded.tasks[coded.lags > 0]).tolist()]
    used: set[int] = set()
    for scope in (Scope.MICROBATCH, Scope.STEP):
        inputs = {
            name: {buffer for buffer in buffers if program.buffers[buffer].scope is scope}
            for name, buffers in read.items()
        }
        awaited_next = {name for task in lagging for name in inputs[task]}
        for tasks in _sequences(coded, scope):
            awaited = set(awaited_next)
            for task in [names[number] for number in reversed(tasks)]:
                used.update(id(op) for op in unread[task] if not awaited.isdisjoint(op.writes))
                awaited |= inputs[task]
    for name, ops in unread.items():
        for op in ops:
            if id(op) not in used:
                nobody = f"nothing reads {' or '.join(op.writes)}"
                raise CheckError(f"{where(program, op)} of task {name!r} is dead: {nobody}")


def _sequences(coded: CodedCalls, scope: Scope) -> list[list[int]]:
    """Return the sequences of tasks, by number, that are called on the same instances of a scope's buffers.

    Of each task the first call, for which most is awaited, and the last, before which the task's own inputs are.
    """
    sequences = []
    for calls in coded.sequences if scope is Scope.MICROBATCH else [coded.every]:
        outer = sorted({*coded.first_of_tasks(calls), *coded.first_of_tasks(calls[::-1])})
        sequences.append(coded.tasks[outer].tolist())
    return sequences


def _unread(program: Program, task: Task) -> list[Op]:
    """Return the ops of a task whose results only another call could use."""
    found: list[Op] = []
    read_later: set[str] = set()
    for op in reversed(task.ops):
        if read_later.isdisjoint(op.writes) and not (_is_exempt(program, op) or _keeps(program, op)):
            found.append(op)
        read_later.update(op.reads)
    return found


def _is_exempt(program: Program, op: Op) -> bool:
    if isinstance(op, Collective):
        return not program.role.keys().isdisjoint(op.axes)
    return isinstance(op, Send | Recv) or (isinstance(op, Compute) and op.kernel == _ABSTRACT_WORK)


def _keeps(program: Program, op: Op) -> bool:
    return not op.writes or Scope.PERSISTENT in [program.buffers[name].scope for name in op.writes]
