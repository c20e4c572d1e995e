"""From a schedule's actions to calls of tasks, messages included."""

from collections.abc import Sequence

from sim.plan.program import Call
from sim.training.pipeline.schedules import Action


def stage_calls(order: Sequence[Action], num_ranks: int, num_stages: int) -> list[Call]:
    """Return a rank's calls: each forward and backward between its receive and its send.

    Messages run on streams of their own, so a receive that stands before its forward is posted as early
    as its stream allows, and a send delays nobody.
    """
    calls = []
    for kind, stage, microbatch in order:
        direction = "forward" if kind == "F" else "backward"
        source, target = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
        if 0 <= source < num_stages and num_ranks > 1:
            calls.append(Call(f"recv_{direction}.{stage}", microbatch))
        calls.append(Call(f"{direction}.{stage}", microbatch))
        if 0 <= target < num_stages and num_ranks > 1:
            calls.append(Call(f"send_{direction}.{stage}", microbatch))
    return calls
