"""The slots of jobs whose GPUs change: on each node a job keeps those that it has, and its first rank, if it may."""

from collections import Counter
from collections.abc import Mapping, Sequence

from sim.jobs.placement import FreeGpus, Placement
from sim.jobs.policy import Change

Team = tuple[int, ...]
"""Slots in order of rank."""


def chosen_slots(changes: Sequence[Change], held: Mapping[int, Team], slots_per_node: Sequence[int]) -> dict[int, Team]:
    """Return the slots of each changed job that runs from now on, by its index; ``held``: those of all jobs before.

    Raises ValueError where the changes need more slots than there are.
    """
    node_of = nodes_of(slots_per_node)
    changed = {change.job.index for change in changes}
    free = set(range(len(node_of))) - {slot for index, team in held.items() if index not in changed for slot in team}
    free_by_node = Counter(node_of[slot] for slot in free)
    wanted = _placements(changes, FreeGpus([free_by_node[node] for node in range(len(slots_per_node))]))
    lacking = {index: dict(placement) for index, placement in wanted.items()}
    found: dict[int, list[int]] = {index: [] for index in wanted}
    for index, counts in lacking.items():  # first what each keeps, so that nobody else takes it
        for slot in held.get(index, ()):
            if counts.get(node_of[slot], 0):
                counts[node_of[slot]] -= 1
                found[index].append(slot)
    free -= {slot for slots in found.values() for slot in slots}
    for index, counts in lacking.items():
        for node, count in counts.items():
            new = sorted(slot for slot in free if node_of[slot] == node)[:count]
            found[index] += new
            free -= set(new)
    return {index: tuple(slots) for index, slots in found.items()}


def nodes_of(slots_per_node: Sequence[int]) -> list[int]:
    """Return the node of each slot."""
    return [node for node, count in enumerate(slots_per_node) for _ in range(count)]


def _placements(changes: Sequence[Change], free: FreeGpus) -> dict[int, Placement]:
    """Return the nodes of each job that runs from now on: where the policy wants it, or few of them."""
    found = {}
    for change in changes:
        if change.num_gpus:
            placement = change.placed_on(free)
            free.take(placement)
            found[change.job.index] = placement
    return found


def placement_of(team: Team, slots_per_node: Sequence[int]) -> Placement:
    """Return the nodes of some slots."""
    node_of = nodes_of(slots_per_node)
    return tuple(sorted(Counter(node_of[slot] for slot in team).items()))
