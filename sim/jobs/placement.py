"""The nodes of a cluster, their free GPUs, and the nodes that a job's GPUs come from."""

from collections.abc import Callable, Sequence

Placement = tuple[tuple[int, int], ...]
"""(node, number of GPUs) of a job, in the order of its ranks."""

Place = Callable[[Sequence[int], int], Placement | None]
"""From the free GPUs of each node, and a number of GPUs, to a placement; None if too few are free."""


def consolidated(free: Sequence[int], num_gpus: int) -> Placement | None:
    """Return a placement on few nodes, or None if too few GPUs are free.

    A job that fits into a node takes the node that it fills best. A larger job takes the nodes with the most free GPUs,
    and then the node that its remainder fills best. Ties go to the first node.
    """
    if sum(free) < num_gpus:
        return None
    taken: list[tuple[int, int]] = []
    left = list(free)
    while num_gpus > 0:
        fitting = [(count, node) for node, count in enumerate(left) if count >= num_gpus]
        if fitting:
            taken.append((min(fitting)[1], num_gpus))
            break
        most = max(left)
        node = left.index(most)
        taken.append((node, most))
        left[node] = 0
        num_gpus -= most
    return tuple(sorted(taken))


def scattered(free: Sequence[int], num_gpus: int) -> Placement | None:
    """Return a placement on the nodes with the most free GPUs, one after the other, or None if too few are free.

    So do the baselines in the simulator of Pollux (OSDI 2021). Ties go to the first node.
    """
    if sum(free) < num_gpus:
        return None
    taken = []
    for node in sorted(range(len(free)), key=lambda node: -free[node]):
        if num_gpus <= 0:
            break
        taken.append((node, min(free[node], num_gpus)))
        num_gpus -= free[node]
    return tuple(taken)


def fewest_nodes(gpus_per_node: Sequence[int], num_gpus: int) -> int:
    """Return the fewest nodes that hold a number of GPUs; all nodes where it is more than all of theirs."""
    left = num_gpus
    for number, count in enumerate(sorted(gpus_per_node, reverse=True), 1):
        left -= count
        if left <= 0:
            return number
    return len(gpus_per_node)


class FreeGpus:
    """The free GPUs of each node, and their total.

    ``node_types``: the type of GPU of each node; empty: one type. ``place_on``: from free GPUs of nodes to a placement.
    """

    def __init__(
        self, gpus_per_node: Sequence[int], node_types: Sequence[str] = (), place_on: Place = consolidated
    ) -> None:
        self._types, self._place_on = node_types, place_on
        self.by_node = list(gpus_per_node)
        self.total = sum(gpus_per_node)

    def place(self, num_gpus: int, gpu_type: str | None = None) -> Placement | None:
        """Return a placement on free GPUs of a type, or None; without a type, on GPUs of one type if that can be."""
        if not self._types:
            return self._place_on(self.by_node, num_gpus)
        for name in dict.fromkeys(self._types) if gpu_type is None else (gpu_type,):
            kept = [count if its == name else 0 for count, its in zip(self.by_node, self._types, strict=True)]
            if (found := self._place_on(kept, num_gpus)) is not None:
                return found
        return self._place_on(self.by_node, num_gpus) if gpu_type is None else None

    def take_node(self, node: int) -> None:
        """Take all free GPUs of a node that is down."""
        self.take(((node, self.by_node[node]),))

    def take(self, placement: Placement) -> None:
        """Take the GPUs of a placement. Raises ValueError where a node has fewer free."""
        for node, count in placement:
            if self.by_node[node] < count:
                raise ValueError(f"node {node} has {self.by_node[node]} free GPUs, not {count}")
            self.by_node[node] -= count
            self.total -= count

    def give_back(self, placement: Placement) -> None:
        """Free the GPUs of a placement."""
        for node, count in placement:
            self.by_node[node] += count
            self.total += count
