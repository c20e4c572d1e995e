"""Refuse plans that could not run, before anything runs."""

from collections import defaultdict

from sim.plan.buffer import Buffer, Scope, Tier
from sim.plan.check_collectives import check_collective, check_groups, where
from sim.plan.errors import CheckError
from sim.plan.op import Collective, Compute, Copy, Op, Recv, Send
from sim.plan.program import Call, Plan, Program, Task
from sim.plan.steps import drain, first_step, longest_lag

Issue = tuple[Op, Call]
"""An op, and the call that issues it."""


def check(plan: Plan) -> None:
    """Raise CheckError, naming role, stream, op and peer, where a plan breaks a rule.

    Every rank has one program; ops name buffers that exist, and but for copies in one tier of memory; nothing is read
    before it is written; sends match
    receives in order, micro-batch and size; a collective's buffers fit its kind; the members of a group issue the
    same collectives in the same order. What meets completes the same step, so all of this holds as well for the first
    step of a run and for its drain. A cycle between ranks shows as a deadlock when the plan runs.
    """
    _check_roles(plan)
    for program in plan.programs:
        _check_buffers(plan, program)
        _check_lags(program)
        _check_reads(program)
    if any(longest_lag(program) for program in plan.programs):
        for program in (*first_step(plan).programs, *drain(plan).programs):
            _check_reads(program)
    _check_messages(plan)
    check_groups(plan)


def _check_lags(program: Program) -> None:
    wrong = next((call for call in program.calls if call.lag not in {0, 1}), None)
    if wrong is not None:
        raise CheckError(
            f"role {program.role_name}: call of {wrong.task!r} completes the step {wrong.lag} before its own; "
            "it can be that step's, or the one before's"
        )


def _check_roles(plan: Plan) -> None:
    owners = [rank for program in plan.programs for rank in plan.ranks_of(program)]
    if sorted(owners) != list(range(plan.mesh.size)):
        raise CheckError(
            f"plan {plan.name!r}: {len(plan.programs)} programs do not cover each of {plan.mesh.size} ranks once"
        )


def _check_buffers(plan: Plan, program: Program) -> None:
    for call in program.calls:
        if call.task not in program.tasks:
            raise CheckError(f"role {program.role_name}: call of unknown task {call.task!r}")
    for task in program.tasks.values():
        for op in task.ops:
            for name in (*op.reads, *op.writes):
                if name not in program.buffers:
                    raise CheckError(f"{where(program, op)}: unknown buffer {name!r}")
            _check_tiers(program, op)
            if isinstance(op, Collective):
                check_collective(plan, program, op)


def _check_tiers(program: Program, op: Op) -> None:
    """Raise CheckError unless a copy leads from one tier to another, and all but waiting stays in one."""
    if isinstance(op, Compute) and not op.writes:
        return
    reads, writes = ([program.buffers[name] for name in names] for names in (op.reads, op.writes))
    sources, targets = {buffer.tier for buffer in reads}, {buffer.tier for buffer in writes}
    if isinstance(op, Copy):
        sizes = [sum(buffer.num_elements for buffer in buffers) for buffers in (reads, writes)]
        if len(sources) != 1 or len(targets) != 1 or sources == targets:
            raise CheckError(f"{where(program, op)}: a copy leads from one tier of memory to another")
        if sizes[0] != sizes[1] or len({buffer.dtype for buffer in (*reads, *writes)}) != 1:
            raise CheckError(
                f"{where(program, op)}: copies {sizes[0]} elements to {sizes[1]}; they are as many, of one type"
            )
    elif len(sources | targets) > 1:
        raise CheckError(f"{where(program, op)}: buffers lie in several tiers of memory; copy them to one first")
    elif Tier.HOST in sources | targets and not isinstance(op, Compute):
        raise CheckError(f"{where(program, op)}: ranks communicate from the memory of their devices")


def _check_reads(program: Program) -> None:
    needs, gives = {}, {}
    for name, task in program.tasks.items():
        needs[name], gives[name] = _needs_and_gives(program, task)
    written: set[tuple[str, int | None]] = set()
    for call in program.calls:
        for buffer, op in needs[call.task]:
            if _instance(buffer, call.microbatch) not in written:
                raise CheckError(
                    f"{where(program, op)}: reads {buffer.name!r} of micro-batch {call.microbatch} in task "
                    f"{call.task!r} before anything writes it"
                )
        written.update(_instance(buffer, call.microbatch) for buffer in gives[call.task])


def _needs_and_gives(program: Program, task: Task) -> tuple[list[tuple[Buffer, Op]], list[Buffer]]:
    """Return what a task reads before writing it, and what it writes that another task touches."""
    others = {b for t in program.tasks.values() if t is not task for op in t.ops for b in (*op.reads, *op.writes)}
    needs: dict[str, Op] = {}
    written: dict[str, None] = {}
    for op in task.ops:
        for name in op.reads:
            if name not in written and program.buffers[name].scope is not Scope.PERSISTENT:
                needs.setdefault(name, op)
        written.update(dict.fromkeys(op.writes))
    return (
        [(program.buffers[name], op) for name, op in needs.items()],
        [program.buffers[name] for name in written if name in others],
    )


def _instance(buffer: Buffer, microbatch: int | None) -> tuple[str, int | None]:
    return buffer.name, microbatch if buffer.scope is Scope.MICROBATCH else None


def _check_messages(plan: Plan) -> None:
    sent = {id(program): _by_channel(program) for program in plan.programs}
    for program in plan.programs:
        rank = plan.ranks_of(program)[0]
        for (axis, offset, direction, is_send), issued in sent[id(program)].items():
            peer = plan.program_of(plan.mesh.shift(rank, axis, offset))
            answers = sent[id(peer)].get((axis, -offset, direction, not is_send), [])
            verb, other = ("sends", "receives") if is_send else ("receives", "sends")
            if len(issued) != len(answers):
                raise CheckError(
                    f"role {program.role_name} {verb} {len(issued)} {direction} messages along {axis!r} and its "
                    f"peer, role {peer.role_name}, {other} {len(answers)}"
                )
            for mine, theirs in zip(issued, answers, strict=True):
                _check_message(program, peer, mine, theirs)


def _by_channel(program: Program) -> dict[tuple[str, int, str, bool], list[Issue]]:
    channels: dict[tuple[str, int, str, bool], list[Issue]] = defaultdict(list)
    messages = {name: [op for op in task.ops if isinstance(op, Send | Recv)] for name, task in program.tasks.items()}
    for call in program.calls:
        for op in messages[call.task]:
            channels[op.axis, op.offset, op.direction, isinstance(op, Send)].append((op, call))
    return channels


def _check_message(program: Program, peer: Program, mine: Issue, theirs: Issue) -> None:
    (op, call), (answer, other) = mine, theirs
    size = sum(program.buffers[name].num_bytes for name in (*op.reads, *op.writes))
    expected = sum(peer.buffers[name].num_bytes for name in (*answer.reads, *answer.writes))
    if (call.microbatch, call.lag, size) != (other.microbatch, other.lag, expected):
        here, there = (" of the step before" if lag else "" for lag in (call.lag, other.lag))
        raise CheckError(
            f"{where(program, op)} of micro-batch {call.microbatch}{here} ({size} bytes) meets {where(peer, answer)} "
            f"of micro-batch {other.microbatch}{there} ({expected} bytes)"
        )
