"""The placement of virtual stages on ranks, and the order of the stages."""

from functools import cached_property

from msgspec import Struct


class Placement(Struct, frozen=True, dict=True):
    """The rank ``ranks[s]`` of every virtual stage s.

    Each copy of the model is a chain of consecutive stages; a micro-batch goes through one chain.
    ``num_copies``: copies of the model that the stages form.
    ``wraps``: the first rank follows the last one, so every message goes one rank ahead (a ring).
    """

    num_ranks: int
    ranks: tuple[int, ...]
    num_copies: int = 1
    wraps: bool = False

    @property
    def num_stages(self) -> int:
        """Return the number of virtual stages over all ranks and copies."""
        return len(self.ranks)

    @property
    def chain_length(self) -> int:
        """Return the number of virtual stages of one copy of the model."""
        return len(self.ranks) // self.num_copies

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """Return every rank's virtual stages, in order."""
        held: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for stage, rank in enumerate(self.ranks):
            held[rank].append(stage)
        return tuple(tuple(stages) for stages in held)

    def is_first(self, stage: int) -> bool:
        """Return whether a stage begins its copy of the model."""
        return stage % self.chain_length == 0

    def is_last(self, stage: int) -> bool:
        """Return whether a stage ends its copy of the model."""
        return stage % self.chain_length == self.chain_length - 1

    def copy_of(self, stage: int) -> int:
        """Return the index of the copy of the model that a stage belongs to."""
        return stage // self.chain_length

    def hop(self, stage: int) -> int:
        """Return the number of ranks from a stage to the next one of its copy; 0 on the same rank."""
        here, there = self.ranks[stage], self.ranks[stage + 1]
        if here == there:
            return 0
        return 1 if self.wraps else there - here


def loop(num_ranks: int, virtual_stages: int = 1) -> Placement:
    """Return the looping placement: stage s on rank s mod P (Narayanan et al. 2021)."""
    return Placement(num_ranks, tuple(range(num_ranks)) * virtual_stages, wraps=True)


def blocks(num_ranks: int, virtual_stages: int = 1) -> Placement:
    """Return the placement of consecutive stages on every rank: stage s on rank s div v."""
    return Placement(num_ranks, tuple(stage // virtual_stages for stage in range(num_ranks * virtual_stages)))


def v_shape(num_ranks: int) -> Placement:
    """Return the V placement (Qi et al. 2024): down the ranks and up again; the turn is on the last rank."""
    down = tuple(range(num_ranks))
    return Placement(num_ranks, down + down[::-1])


def bidirectional(num_ranks: int) -> Placement:
    """Return two copies of the model: stages 0..P-1 down the ranks, P..2P-1 up the ranks (Li and Hoefler 2021)."""
    down = tuple(range(num_ranks))
    return Placement(num_ranks, down + down[::-1], num_copies=2)
