"""A forward and a backward that take turns on a rank, so that exchanges of one run while the other computes.

Each pass is cut after its exchanges of tokens with other experts' ranks. The pieces are called in turn: a piece of the
forward, one of the backward, and so on. The ops are those of whole passes, in the order of each pass. DeepSeek-AI 2024
(DualPipe) overlaps the passes kernel by kernel; here pieces share a stream, and only exchanges run beside computing.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import chain, zip_longest

from msgspec.structs import replace

from sim.plan.words.calls import Calls
from sim.plan.words.op import Op
from sim.plan.words.program import Call, Phase, Task
from sim.training.pipeline.actions import KINDS, Action, steps

Pair = tuple[Call, Call]
"""A forward and the backward that overlaps it."""


def overlapping_pairs(order: Sequence[Action]) -> Set[Pair]:
    """Return the calls of the actions of a rank's order that overlap."""
    pairs = (step for step in steps(order) if len(step) == 2)
    return {(_call(forward), _call(backward)) for forward, backward in pairs}


def taking_turns(
    tasks: Mapping[str, Task], calls: Sequence[Call], pairs: Set[Pair], cuts_after: Callable[[Op], bool]
) -> tuple[dict[str, Task], Calls]:
    """Return the tasks with the pieces of passes, and the calls with pairs that come one after the other in pieces.

    ``cuts_after``: whether a pass is cut after an op. A pair that something comes between stays as it is.
    """
    pieces: dict[str, list[Task]] = {}
    found: list[Call] = []
    calls = tuple(calls)
    rest = iter(range(len(calls)))
    for at in rest:
        pair = calls[at : at + 2]
        if pair not in pairs:
            found.append(calls[at])
            continue
        next(rest)
        for call in pair:
            if call.task not in pieces:
                pieces[call.task] = _pieces(tasks[call.task], cuts_after)
        ways = [[call._replace(task=piece.name) for piece in pieces[call.task]] for call in pair]
        found += [call for call in chain.from_iterable(zip_longest(*ways)) if call is not None]
    called = {call.task for call in found}
    kept = {name: task for name, task in tasks.items() if name in called}
    return kept | {piece.name: piece for parts in pieces.values() for piece in parts}, Calls.of(found)


def _call(action: Action) -> Call:
    return Call(f"{KINDS[action.kind]}.{action.stage}", action.microbatch)


def _pieces(task: Task, cuts_after: Callable[[Op], bool]) -> list[Task]:
    """Return a pass in pieces. The ops are copies, since an op belongs to one task."""
    parts: list[list[Op]] = [[]]
    for op, following in zip_longest(task.ops, task.ops[1:]):
        parts[-1].append(replace(op))
        if cuts_after(op) and not (following and cuts_after(following)):
            parts.append([])
    parts = [ops for ops in parts if ops]
    whole, between = task.phase, Phase.FORWARD_PART if task.phase is Phase.FORWARD else Phase.BACKWARD_PART
    main = 0 if whole is Phase.FORWARD else len(parts) - 1
    return [
        Task(f"{task.name}.piece{n}", whole if n == main else between, tuple(ops), task.stage)
        for n, ops in enumerate(parts)
    ]
