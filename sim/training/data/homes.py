"""Homes: the tiers of memory in which a rank's shards of a unit lie between uses."""

from typing import Final

from msgspec import Struct

from sim.plan.words.buffer import Tier


class Home(Struct, frozen=True):
    """``optimizer``: where the shard of the gradients, the master weights and the moments lie, and are updated."""

    parameters: Tier
    optimizer: Tier


ON_DEVICE: Final = Home(Tier.DEVICE, Tier.DEVICE)
UPDATED_ON_HOST: Final = Home(Tier.DEVICE, Tier.HOST)
ON_HOST: Final = Home(Tier.HOST, Tier.HOST)
