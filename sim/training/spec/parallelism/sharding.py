"""Sharding by data parallelism beyond the optimizer state: typed, checked input."""

from typing import Final, Literal, NamedTuple

from msgspec import Struct

from sim.training.pipeline.rules import Schedule

GradientSync = Literal["each_microbatch", "last_microbatch"]
Offload = Literal["optimizer"]

GRADIENT_SCHEDULES: Final[tuple[Schedule, ...]] = ("gpipe", "1f1b", "interleaved_1f1b", "breadth_first")
"""Schedules under which gradients can be sharded every micro-batch: one copy of the model, whole backwards."""


class Choice(NamedTuple):
    """Into how many slices an operator is split, and how many of them are sharded."""

    num_slices: int = 1
    num_sharded: int = 0


class OsdpSpec(Struct, frozen=True, kw_only=True):
    """Shard by operator, no more than a memory limit asks for (OSDP, Jiang et al., IJCAI 2023)."""

    memory_limit_bytes: int | None = None
    """The memory limit of a rank; None: the memory of its device."""
    splits: tuple[int, ...] = (1,)
    """Numbers of slices that a linear layer may be split into, where its input divides."""
    gap: float = 0.0
    """By which part of the least time the chosen one may be longer."""
    choices: tuple[tuple[str, Choice], ...] | None = None
    """The choices by operator; None: left to prices. Operators left out are replicated."""


class ShardingSpec(Struct, frozen=True, kw_only=True):
    """Options of ZeRO stages 2 and 3. None: the user left the key out.

    The properties say what is then done.
    """

    shard_degree: int | None = None
    """Ranks that share one set of shards; the groups of that many are replicas of each other. Default: all."""
    local_degree: int | None = None
    """Stage 3: neighbours among those; units are gathered among the ranks at one place of all of them first, and then
    among neighbours. Default: all at once."""
    gradient_sync: GradientSync | None = None
    """Reduce-scatter gradients after every micro-batch (default), or once a step after accumulation."""
    prefetch: int | None = None
    """Stage 3: units that are gathered ahead of the one that computes, default 1. No more than one and these are
    gathered at once."""
    reshard_after_forward: bool | None = None
    """Stage 3: free gathered parameters after forward and gather them again in backward (default)."""
    offload: Offload | None = None
    """Stage 2: keep gradients, master weights and optimizer state on the host, and update there (ZeRO-Offload)."""

    delayed_update: bool = False
    """Offload: the host updates with a step's gradients during the next step, whose parameters lack them."""

    @property
    def syncs_each_microbatch(self) -> bool:
        """Return whether gradients are sharded after every micro-batch."""
        return self.gradient_sync != "last_microbatch"

    @property
    def units_ahead(self) -> int:
        """Return how many units are gathered ahead."""
        return 1 if self.prefetch is None else self.prefetch

    @property
    def reshards(self) -> bool:
        """Return whether parameters are gathered again in backward."""
        return self.reshard_after_forward is not False
