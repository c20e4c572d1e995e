"""Base classes of sections of a scenario file, and types of values that several sections share."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from scenarios.reading.schema.described import DescribedSchema

MAX_WORLD_SIZE: Final = 1_000_000
MAX_TOKENS: Final = 10_000_000
MAX_MICROBATCHES: Final = 1_000_000

MicrobatchCount = Annotated[int, Field(ge=1, le=MAX_MICROBATCHES)]
Probability = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Section(BaseModel):
    """A mapping of a scenario file. The docstring of a field describes its key in the JSON Schema."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", strict=True, defer_build=True, protected_namespaces=()
    )


class ScenarioSection(Section):
    """The keys of every scenario file, of any kind of work."""

    name: str = Field(min_length=1, max_length=200)
    """Name of the scenario in results."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    """Seed of everything random."""


def json_schema_of(section: type[Section]) -> dict[str, Any]:
    """Return the JSON Schema of a section, its own sections under ``$defs``."""
    written = section.model_json_schema(ref_template="#/$defs/{model}", schema_generator=DescribedSchema)
    schema: dict[str, Any] = _without_null(written)
    return schema


def _without_null(schema: Any) -> Any:
    """Return a JSON Schema that refuses null everywhere, as the loader does: leave a key out for its default."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _without_null(value) for key, value in schema.items() if not (key == "default" and value is None)}
    if {"type": "null"} in result.get("anyOf", ()):
        kept = [option for option in result.pop("anyOf") if option != {"type": "null"}]
        result |= kept[0] if len(kept) == 1 else {"anyOf": kept}
    return result
