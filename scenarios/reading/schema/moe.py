"""The key of a system for mixtures of experts."""

from typing import Annotated

from msgspec import Meta

from scenarios.reading.sections.section import Section


class MoeSection(Section):
    """A published system for mixtures of experts."""

    system: Annotated[str, Meta(min_length=1, max_length=200)]
    """Its settings are defaults of model.experts, network and software; `simulate list moe_systems` names them."""
