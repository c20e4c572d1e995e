"""Homes: the tiers of memory in which a rank's shards of a unit lie between uses."""

from dataclasses import dataclass
from typing import Final

from sim.plan.words.buffer import Tier


@dataclass(frozen=True, slots=True)
class Home:
    """``optimizer``: where the shard of the gradients, the master weights and the moments lie, and are updated."""

    parameters: Tier
    optimizer: Tier


ON_DEVICE: Final = Home(Tier.DEVICE, Tier.DEVICE)
UPDATED_ON_HOST: Final = Home(Tier.DEVICE, Tier.HOST)
ON_HOST: Final = Home(Tier.HOST, Tier.HOST)
