"""PipeDream-2BW: 1F1B without end, two versions of the weights.

Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training". No step waits for the pipeline to drain. After
every m backwards a rank takes an optimizer step, W(t+1) = W(t) - update(g(W(t-1))): all micro-batches of step t run
forward and backward on every rank with W(t-1), the newest version that every rank has when they enter. So each gradient
is one step late, and a rank keeps two versions: the newest, and the one before.

A run of some steps is laid out, from an empty pipeline to an empty one; the step before the last is a steady one.
"""

from collections.abc import Sequence
from typing import Final

from sim.plan.words.program import Call

NUM_STEPS: Final = 4
"""Steps of a run: the first fills the pipeline, the last drains it, and two in between show the steady state."""


def with_updates(
    calls: Sequence[Call], stage: int, num_microbatches: int, updates: Sequence[str], clear: str = "", newest: str = ""
) -> list[Call]:
    """Return a rank's forwards, backwards and messages with ``updates`` after every step's last backward.

    Once step t-1 has been updated, the version before the newest is W(t-1); until then W(t-1) is the newest. So
    forwards of step t that come before that update run ``newest``, where it is given, and backwards never need to.
    ``clear``, where it is given, is called before every step's first backward.
    """
    done, m, last = 0, num_microbatches, NUM_STEPS * num_microbatches - 1
    clears = [Call(clear)] if clear else []
    result = [*clears]
    for call in calls:
        assert call.microbatch is not None
        is_early = call.task == f"forward.{stage}" and done < call.microbatch // m * m
        result.append(Call(newest, call.microbatch) if newest and is_early else call)
        if call.task == f"backward.{stage}":
            done += 1
            if done % m == 0:
                result += [Call(name, call.microbatch) for name in updates]
                result += clears if call.microbatch < last else []
    return result
