"""All algorithms with a step list, by collective and by their name in the cost models."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from costmodels.collectives import steps, steps_all_to_all
from costmodels.collectives.steps import StepList
from costmodels.errors import CollectiveError

Builder = Callable[[tuple[int, ...]], StepList]


def _flat(build: Callable[[int], StepList]) -> Builder:
    """Return a builder for an algorithm that ignores nodes."""
    return lambda ranks_per_node: build(sum(ranks_per_node))


STEP_LISTS: Final[Mapping[str, Mapping[str, Builder]]] = MappingProxyType(
    {
        "all_reduce": {
            "ring": _flat(steps.all_reduce_ring),
            "tree": partial(steps.all_reduce_tree, pieces=4),
            "halving_doubling": _flat(steps.all_reduce_halving_doubling),
            "direct": _flat(steps.all_reduce_direct),
            "hierarchical": steps.all_reduce_hierarchical,
            "hierarchical_tree": steps.all_reduce_hierarchical_tree,
        },
        "all_gather": {
            "ring": _flat(steps.all_gather_ring),
            "direct": _flat(steps.all_gather_direct),
            "recursive_doubling": _flat(steps.all_gather_recursive_doubling),
            "bruck": _flat(steps.all_gather_bruck),
            "hierarchical": steps.all_gather_hierarchical,
        },
        "reduce_scatter": {
            "ring": _flat(steps.reduce_scatter_ring),
            "direct": _flat(steps.reduce_scatter_direct),
            "recursive_halving": _flat(steps.reduce_scatter_recursive_halving),
            "hierarchical": steps.reduce_scatter_hierarchical,
        },
        "broadcast": {
            "ring": _flat(steps.broadcast_ring),
            "tree": steps.broadcast_tree,
            "store_forward": _flat(steps.broadcast_store_forward),
        },
        "reduce": {
            "ring": _flat(steps.reduce_ring),
            "tree": steps.reduce_tree,
            "store_forward": _flat(steps.reduce_store_forward),
        },
        "all_to_all": {
            "direct": _flat(steps_all_to_all.all_to_all_direct),
            "pairwise": _flat(steps_all_to_all.all_to_all_pairwise),
            "bruck": _flat(steps_all_to_all.all_to_all_bruck),
            "hierarchical": steps_all_to_all.all_to_all_hierarchical,
            "leader": steps_all_to_all.all_to_all_leader,
        },
        "barrier": {"dissemination": _flat(steps.barrier_dissemination)},
    }
)


def collective_steps(kind: str, algorithm: str, ranks_per_node: tuple[int, ...]) -> StepList:
    """Return the step list of a collective among ranks numbered node by node.

    Raises CollectiveError for a kind or algorithm without one (where switches take part: ``steps_in_network``), and for
    a node without ranks.
    """
    if not ranks_per_node or min(ranks_per_node) < 1:
        raise CollectiveError(f"every node of a group needs 1 rank or more, got {ranks_per_node}")
    builders = STEP_LISTS.get(kind, {})
    if algorithm not in builders:
        known = ", ".join(builders) or ", ".join(STEP_LISTS)
        raise CollectiveError(f"{kind!r} by {algorithm!r} has no step list; known: {known}")
    return builders[algorithm](ranks_per_node)
