"""How a replica of a service lies on devices: its stages, their groups, and the ranks of a group.

A stage is ``expert_degree`` groups of ``tensor_degree`` devices each. The ranks of a group share every layer. Groups of
a stage hold the same attention, decode other sequences, and share out the experts. Devices are counted from rank to
rank, then from group to group, then from stage to stage, as those of a plan are.
"""

from msgspec import Struct


class Stage(Struct, frozen=True):
    """The layers of a stage: with an MLP, and with experts. ``is_first``, ``is_last``: it has an end of the model."""

    num_dense: int
    num_sparse: int
    is_first: bool
    is_last: bool

    @property
    def num_layers(self) -> int:
        """Return the number of layers."""
        return self.num_dense + self.num_sparse


class ReplicaLayout(Struct, frozen=True, kw_only=True):
    """The degrees of a replica, and the devices of a node."""

    tensor_degree: int = 1
    pipeline_degree: int = 1
    expert_degree: int = 1
    devices_per_node: int = 1

    @property
    def stage_devices(self) -> int:
        """Return the devices of a stage."""
        return self.tensor_degree * self.expert_degree

    @property
    def num_devices(self) -> int:
        """Return the devices of the replica."""
        return self.stage_devices * self.pipeline_degree

    @property
    def num_groups(self) -> int:
        """Return how many parts a batch has: one for every group, in each of as many micro-batches as stages."""
        return self.pipeline_degree * self.expert_degree

    @property
    def tensor_ranks(self) -> tuple[int, ...]:
        """Return the ranks of a tensor-parallel group on each of its nodes."""
        return _on_nodes(self.tensor_degree, 1, self.devices_per_node)

    @property
    def expert_ranks(self) -> tuple[int, ...]:
        """Return the ranks, one of each group, that exchange tokens, on each of their nodes."""
        return _on_nodes(self.expert_degree, self.tensor_degree, self.devices_per_node)

    @property
    def crossings(self) -> int:
        """Return how many of the steps from stage to stage, and from the last to the first, lead to another node."""
        nodes = [stage * self.stage_devices // self.devices_per_node for stage in range(self.pipeline_degree)]
        return sum(left != right for left, right in zip(nodes, [*nodes[1:], *nodes[:1]], strict=True))

    def problem(self) -> str:
        """Return why the replica does not lie evenly on nodes; empty if it does."""
        for size, what in ((self.tensor_degree, "a group"), (self.stage_devices, "a stage")):
            if self.devices_per_node % size and size % self.devices_per_node:
                return f"{what} of {size} devices fills no whole nodes of {self.devices_per_node}, and divides none"
        return ""

    def stages(self, num_dense: int, num_sparse: int) -> tuple[Stage, ...]:
        """Return the stages of a model; layers with an MLP come first.

        Stages have equally many layers. What is left goes to those before the last, one each, as in vLLM
        (``get_pp_indices``), since the first and the last have the ends.
        """
        count, num_layers = self.pipeline_degree, num_dense + num_sparse
        least, left = divmod(num_layers, count)
        sizes = [least + (1 if 2 <= count - stage <= left + 1 else 0) for stage in range(count)]
        found, first = list[Stage](), 0
        for stage, size in enumerate(sizes):
            dense = max(0, min(size, num_dense - first))
            found.append(Stage(dense, size - dense, stage == 0, stage == count - 1))
            first += size
        return tuple(found)


def _on_nodes(count: int, stride: int, per_node: int) -> tuple[int, ...]:
    """Return how many of ``count`` devices, each so many after the one before, lie on each of their nodes."""
    here = min(count, max(1, per_node // stride))
    return (here,) * (count // here)
