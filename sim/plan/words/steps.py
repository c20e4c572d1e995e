"""Runs of several steps, made from a plan of one step.

Persistent buffers carry results from one step to the next. A schedule may also defer calls to the next step's forwards;
such calls complete an earlier step (``lag``). So a run begins with a step without these calls, and ends with a drain of
these calls alone.
"""

from collections.abc import Callable
from dataclasses import replace

from sim.plan.words.program import Call, Plan, Program


def longest_lag(program: Program) -> int:
    """Return the number of steps before a program's own that its calls reach back."""
    return max((call.lag for call in program.calls), default=0)


def program_of_step(program: Program, step: int, num_steps: int) -> Program:
    """Return the program of one step, counted from 0, of a run of ``num_steps`` steps; past the last one: its drain.

    A call that would complete a step before the first, or after the last, is left out.
    """
    return _only(program, lambda call: 0 <= step - call.lag < num_steps)


def first_step(plan: Plan) -> Plan:
    """Return the first step of a run: nothing is left over from a step before."""
    return replace(plan, programs=tuple(_only(program, lambda call: not call.lag) for program in plan.programs))


def drain(plan: Plan) -> Plan:
    """Return the plan of the calls that remain after the last step of a run, for a plan that reaches back one step."""
    return replace(plan, programs=tuple(_only(program, lambda call: call.lag > 0) for program in plan.programs))


def repeated(program: Program, num_steps: int) -> Program:
    """Return ``num_steps`` steps out of the middle of a run as one program.

    A step's micro-batches are numbered on from those of the step before: they have buffers of their own.
    """
    stride = 1 + max((call.microbatch for call in program.calls if call.microbatch is not None), default=-1)
    calls = [
        call if call.microbatch is None else Call(call.task, call.microbatch + step * stride, call.lag)
        for step in range(num_steps)
        for call in program.calls
    ]
    return replace(program, calls=tuple(calls))


def _only(program: Program, belongs: Callable[[Call], bool]) -> Program:
    return replace(program, calls=tuple(call for call in program.calls if belongs(call)))
