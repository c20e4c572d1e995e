"""What sections of a scenario file are made of: the base of all, and values that several of them hold."""

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

MAX_WORLD_SIZE: Final = 1_000_000
MAX_TOKENS: Final = 10_000_000
MAX_MICROBATCHES: Final = 1_000_000

MicrobatchCount = Annotated[int, Field(ge=1, le=MAX_MICROBATCHES)]
Probability = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Section(BaseModel):
    """A mapping of a scenario file."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, protected_namespaces=()
    )
