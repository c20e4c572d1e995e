"""Runs of several steps, from a plan of one step.

Persistent buffers carry results from one step to the next. A schedule may also defer calls to the next step's forwards;
such calls complete an earlier step (``lag``). So a run begins with a step without these calls, and ends with a drain of
only these calls.
"""

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.integers import Integers
from sim.plan.words.calls import NO_MICROBATCH, Calls
from sim.plan.words.program import Plan, Program


def longest_lag(program: Program) -> int:
    """Return the largest number of steps by which calls of a program complete an earlier step."""
    return int(Calls.of(program.calls).lags.max(initial=0))


def program_of_step(program: Program, step: int, num_steps: int) -> Program:
    """Return the program of one step, counted from 0, of a run of ``num_steps`` steps; after the last step: the drain.

    Calls that would complete a step before the first or after the last are left out.
    """
    return _only(program, lambda lags: (lags <= step) & (lags > step - num_steps))


def first_step(plan: Plan) -> Plan:
    """Return the first step of a run, without calls that complete an earlier step."""
    return replace(plan, programs=tuple(_only(program, lambda lags: lags == 0) for program in plan.programs))


def drain(plan: Plan) -> Plan:
    """Return the plan of the calls that remain after the last step of a run, for a plan with lag 1."""
    return replace(plan, programs=tuple(_only(program, lambda lags: lags > 0) for program in plan.programs))


def repeated(program: Program, num_steps: int) -> Program:
    """Return ``num_steps`` steps from the middle of a run as one program.

    Micro-batches are numbered consecutively over the steps, so each has its own buffers.
    """
    calls = Calls.of(program.calls)
    stride = 1 + int(calls.microbatches.max(initial=NO_MICROBATCH))
    return program.calling(Calls.joined(*[calls.later(step * stride) for step in range(num_steps)]))


def _only(program: Program, belongs: Callable[[Integers], NDArray[np.bool_]]) -> Program:
    """Return a program with those of its calls that belong by their lags."""
    calls = Calls.of(program.calls)
    return program.calling(calls.taken(belongs(calls.lags)))
