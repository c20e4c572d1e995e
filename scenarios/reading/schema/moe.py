"""The key of a system for mixtures of experts."""

from pydantic import Field

from scenarios.reading.schema.values import Section


class MoeSection(Section):
    """A published system for mixtures of experts."""

    system: str = Field(min_length=1, max_length=200)
    """Its settings are defaults of model.experts, network and software; `simulate list moe_systems` names them."""
