"""The keys of every scenario file, and types of values that several sections share."""

from typing import Annotated, Final

from msgspec import Meta

from scenarios.reading.sections.section import Section

MAX_WORLD_SIZE: Final = 1_000_000
MAX_TOKENS: Final = 10_000_000
MAX_MICROBATCHES: Final = 1_000_000

MicrobatchCount = Annotated[int, Meta(ge=1, le=MAX_MICROBATCHES)]
Probability = Annotated[float, Meta(ge=0, lt=1)]
Spread = Annotated[float, Meta(ge=0, le=1)]


class ScenarioSection(Section):
    """The keys of every scenario file, of any kind of work."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    """Name of the scenario in results."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Seed of everything random."""
