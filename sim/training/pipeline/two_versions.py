"""PipeDream-2BW: 1F1B without pipeline drain, and with two versions of the weights.

Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training". No step waits for the pipeline to drain. After
every m backwards a rank takes an optimizer step, W(t+1) = W(t) - update(g(W(t-1))). All micro-batches of step t run
forward and backward on every rank with W(t-1), the newest version that every rank has when they enter. So each gradient
is one step late, and a rank keeps two versions: the newest and the previous one.

The plan holds several steps, from an empty pipeline to an empty pipeline; the step before the last is in steady state.
"""

from collections.abc import Sequence
from typing import Final

from sim.plan.words.program import Call

NUM_STEPS: Final = 4
"""Steps of a run: the first fills the pipeline, the last drains it, and two between them show the steady state."""


def with_updates(
    calls: Sequence[Call], stage: int, num_microbatches: int, updates: Sequence[str], clear: str = "", newest: str = ""
) -> list[Call]:
    """Return a rank's forwards, backwards and messages with ``updates`` after every step's last backward.

    Before the update of step t-1, W(t-1) is the newest version; after it, W(t-1) is the previous version. So forwards
    of step t that come before that update call the task ``newest`` if it is given; backwards never need to.
    ``clear``: if given, this task is called before every step's first backward.
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
