"""Field types of the scenario schema whose check is more than a type and two limits."""

import math
import re
from typing import Annotated, Any, Final, Literal

from costmodels.errors import UnitError
from costmodels.units import (
    LARGEST_MULTIPLE,
    MULTIPLE,
    Dimension,
    format_bytes,
    format_price,
    format_time,
    parse_quantity,
)
from scenarios.reading.sections.markers import Parsed, RefusalError

MAX_DEGREE: Final = 1_000_000
MAX_TEXT: Final = 100

MAX_LONG_S: Final = 1e13
"""About 300,000 years: the longest time between failures of one part that may be stated."""

_PATTERN: Final = r"^\s*\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*[A-Za-zµ][A-Za-zµ/]*\s*$"
_FORMATS: Final = {Dimension.TIME: format_time, Dimension.BYTES: format_bytes, Dimension.PRICE: format_price}
_EXAMPLES: Final = {
    Dimension.TIME: "250 ms", Dimension.BYTES: "25 MiB", Dimension.PRICE: "2.50 USD/h", Dimension.BANDWIDTH: "7 GB/s",
}  # fmt: skip

MAX_COUNT: Final = 10**18
_COUNTS: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
COUNT: Final = re.compile(r"([0-9]*\.?[0-9]+(?:[eE]\+?[0-9]{1,2})?)\s*([KMGBT]?)")
"""A number of things: ``15 T`` is 15 trillion, ``300 B`` and ``300 G`` are 300 billion."""


class Quantity:
    """Reads text with a unit into an SI number between two limits."""

    def __init__(self, dimension: Dimension, *, most: float, allow_zero: bool) -> None:
        self.dimension = dimension
        self.most = most
        self.allow_zero = allow_zero

    def __call__(self, value: object) -> float:
        """Return the SI number, or raise a RefusalError."""
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise RefusalError(f"{value[:40]!r}... is too long for a quantity", f"write it as in {self.example}")
        if value is None or isinstance(value, bool | list | dict):
            raise RefusalError(f"a {self.dimension} is text with a unit", f"write it as in {self.example}")
        try:
            number = parse_quantity(value, self.dimension)
        except UnitError as error:
            rule, _, remedy = str(error).rpartition("; ")
            raise RefusalError(rule, remedy) from error
        if number == 0 and not self.allow_zero:
            raise RefusalError(f"{value!r} must be more than zero", f"write it as in {self.example}")
        if self.dimension is Dimension.BYTES and 0 < number < 1:
            raise RefusalError(f"{value!r} is less than one byte", f"write it as in {self.example}")
        if number > self.most:
            limit = _FORMATS[self.dimension](self.most)
            raise RefusalError(f"{value!r} is more than the limit of {limit}", "write a smaller quantity")
        return number

    @property
    def example(self) -> str:
        """Return a value that is right."""
        return f"'{_EXAMPLES[self.dimension]}'"


_BYTES_OR_ZERO: Final = Quantity(Dimension.BYTES, most=2.0**50, allow_zero=True)
_LONG_DURATION: Final = Quantity(Dimension.TIME, most=MAX_LONG_S, allow_zero=False)


def quantity(dimension: Dimension, *, most: float, allow_zero: bool) -> Parsed:
    """Return the mark of values that are text with a unit, up to a limit, or with ``allow_zero`` nothing."""
    return Parsed(Quantity(dimension, most=most, allow_zero=allow_zero), quantity_schema(dimension))


def quantity_schema(dimension: Dimension) -> dict[str, Any]:
    """Return the JSON Schema of a quantity: text, a number and a unit."""
    return {"type": "string", "pattern": _PATTERN, "examples": [_EXAMPLES[dimension]]}


def parse_interval(value: object) -> float | Literal["auto"]:
    """Return a time between two checkpoints in seconds, or ``auto``."""
    if value == "auto":
        return "auto"
    try:
        return _LONG_DURATION(value)
    except RefusalError as error:
        raise RefusalError(error.rule, f"{error.remedy}, or write auto") from error


class WholeOrAuto:
    """Reads a whole number from 1 to 1,000,000, or ``auto``. ``words``: what the number is, for messages."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __call__(self, value: object) -> int | Literal["auto"]:
        """Return the number, or ``auto``. Raises RefusalError for anything else."""
        if value == "auto":
            return "auto"
        remedy = f"write a whole number from 1 to {MAX_DEGREE:,}, or auto"
        if not isinstance(value, int) or isinstance(value, bool):
            raise RefusalError(f"{self.words} is a whole number or auto, not {_shown(value)}", remedy)
        if not 1 <= value <= MAX_DEGREE:
            raise RefusalError(f"{self.words} lies between 1 and {MAX_DEGREE:,}, got {_shown(value)}", remedy)
        return value


def parse_switch(value: object) -> bool | Literal["auto"]:
    """Return true, false or ``auto``."""
    if value == "auto":
        return "auto"
    if not isinstance(value, bool):
        rule = f"true, false or auto belongs here, not {_shown(value)}"
        raise RefusalError(rule, "write true or false, without quotes, or auto")
    return value


def parse_fraction(value: object) -> float | Literal["auto"]:
    """Return a part of a whole, from 0 to 1, or ``auto``."""
    if value == "auto":
        return "auto"
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0 <= value <= 1:
        raise RefusalError(f"a part lies between 0 and 1, got {_shown(value)}", "write a number from 0 to 1, or auto")
    return float(value)


def parse_multiple(value: object) -> float:
    """Return a multiple of a value of the catalogue, written as text: ``2x`` is 2."""
    found = MULTIPLE.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= MAX_TEXT else None
    factor = float(found[1]) if found else 0.0
    remedy = "write a multiple of the catalogue's value, as in 2x or 0.5x"
    if isinstance(value, str) and not found:
        remedy += ", or the adapters' own value as cluster.topology.nodes.nic.bandwidth or .latency"
    if not found or not 0.0 < factor < math.inf:
        raise RefusalError(f"a multiple above 0 belongs here, not {_shown(value)}", remedy)
    if not 1.0 / LARGEST_MULTIPLE <= factor <= LARGEST_MULTIPLE:
        rule = f"a multiple lies between {1.0 / LARGEST_MULTIPLE:g}x and {LARGEST_MULTIPLE:g}x, got {_shown(value)}"
        raise RefusalError(rule, remedy)
    return factor


def _shown(value: Any) -> str:
    return {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value), repr(value)[:60])


def parse_count(value: object) -> int:
    """Return a number of things, from 1 to 10^18: a whole number, or text as in ``15 T`` or ``300 B``."""
    found = COUNT.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= MAX_TEXT else None
    number = float(found[1]) * _COUNTS[found[2]] if found else value
    remedy = "write a whole number, or one with K, M, B or T, as in '300 B' or '15 T'"
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise RefusalError(f"a number of things belongs here, not {_shown(value)}", remedy)
    if not 1 <= number <= MAX_COUNT or number != int(number):
        raise RefusalError(f"a whole number from 1 to 10^18 belongs here, not {_shown(value)}", remedy)
    return int(number)


Count = Annotated[
    int,
    Parsed(
        parse_count,
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": rf"^{COUNT.pattern}$"}]},
    ),
]
Duration = Annotated[float, quantity(Dimension.TIME, most=1e6, allow_zero=False)]
DurationOrZero = Annotated[float, quantity(Dimension.TIME, most=1e6, allow_zero=True)]
LongDuration = Annotated[float, Parsed(_LONG_DURATION, quantity_schema(Dimension.TIME))]
IntervalOrAuto = Annotated[
    float | Literal["auto"],
    Parsed(parse_interval, {"anyOf": [quantity_schema(Dimension.TIME), {"const": "auto"}]}),
]
FractionOrAuto = Annotated[
    float | Literal["auto"],
    Parsed(parse_fraction, {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"const": "auto"}]}),
]
Multiple = Annotated[
    float,
    Parsed(parse_multiple, {"type": "string", "pattern": rf"^\s*{MULTIPLE.pattern}\s*$", "examples": ["2x"]}),
]
SwitchOrAuto = Annotated[
    bool | Literal["auto"], Parsed(parse_switch, {"anyOf": [{"type": "boolean"}, {"const": "auto"}]})
]
Bytes = Annotated[float, quantity(Dimension.BYTES, most=2.0**50, allow_zero=False)]
Bandwidth = Annotated[float, quantity(Dimension.BANDWIDTH, most=1e15, allow_zero=False)]
WholeBytesOrZero = Annotated[int, Parsed(lambda value: round(_BYTES_OR_ZERO(value)), quantity_schema(Dimension.BYTES))]
Price = Annotated[float, quantity(Dimension.PRICE, most=1e3, allow_zero=True)]
_WHOLE_OR_AUTO: Final = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_DEGREE}, {"const": "auto"}]}
Degree = Annotated[int | Literal["auto"], Parsed(WholeOrAuto("a degree"), _WHOLE_OR_AUTO)]
StepsOrAuto = Annotated[int | Literal["auto"], Parsed(WholeOrAuto("a number of steps"), _WHOLE_OR_AUTO)]
