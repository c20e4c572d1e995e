"""Physical quantities: from text with a unit to SI numbers, and from SI numbers to readable text.

Inside the program all quantities are seconds, bytes, bytes/s, FLOP/s, Hz and USD/s. Bits exist only in the unit
``bit/s`` of line rates, and are never mixed with bytes. GB is 10^9 bytes, GiB is 2^30 bytes.
"""

import difflib
import math
import re
from enum import StrEnum
from typing import Final

from costmodels.errors import UnitError, shown

_DECIMAL: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BYTES: Final = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
_HOUR_S: Final = 3600.0
_SECONDS: Final = {
    **{"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3},
    **{"s": 1.0, "min": 60.0, "h": _HOUR_S, "d": 86400.0, "days": 86400.0},
}
_BITS_PER_S: Final = {f"{prefix}bit/s": factor / 8 for prefix, factor in _DECIMAL.items()}


class Dimension(StrEnum):
    """The dimension of a quantity."""

    TIME = "time"
    BYTES = "size in bytes"
    BANDWIDTH = "bandwidth"
    FLOP_RATE = "arithmetic rate"
    FREQUENCY = "frequency"
    PRICE = "price of time"
    POWER = "power"


_UNITS: Final[dict[Dimension, dict[str, float]]] = {
    Dimension.TIME: _SECONDS,
    Dimension.BYTES: _BYTES,
    Dimension.BANDWIDTH: {f"{unit}/s": factor for unit, factor in _BYTES.items()} | _BITS_PER_S,
    Dimension.FLOP_RATE: {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
    Dimension.FREQUENCY: {f"{prefix}Hz": factor for prefix, factor in _DECIMAL.items()},
    Dimension.PRICE: {"USD/h": 1.0 / _HOUR_S, "USD/s": 1.0},
    Dimension.POWER: {"W": 1.0, "kW": 1e3},
}
_EXAMPLES: Final = {
    Dimension.TIME: "2.5 us",
    Dimension.BYTES: "80 GiB",
    Dimension.BANDWIDTH: "400 Gbit/s",
    Dimension.FLOP_RATE: "312 TFLOP/s",
    Dimension.FREQUENCY: "1.41 GHz",
    Dimension.PRICE: "2.50 USD/h",
    Dimension.POWER: "700 W",
}
MULTIPLE: Final = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*x")
"""A multiple of another value: ``2x``, ``0.5x``."""
LARGEST_MULTIPLE: Final = 1e9
"""Largest factor on a time: a larger one would make times vanish or never end."""
_ROUNDED_UP: Final = 0.99995
"""From this fraction of a unit on, four digits round to the next unit."""
_LARGER_UNIT: Final = 1024
"""Ratio of neighbouring binary units of bytes."""
_QUANTITY: Final = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)?\s*")


def parse_quantity(text: object, dimension: Dimension, example: str = "") -> float:
    """Return a quantity in SI units (s, B, B/s, FLOP/s, Hz, W), prices in USD/s, from text such as ``2.5 us``.

    ``example``: what a message shows as right; empty for one of the dimension.

    Raises UnitError for a bare number, an unknown unit, a unit of another dimension (bits where bytes
    belong, say), a negative or an infinite number.
    """
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    bare = isinstance(text, int | float) and not isinstance(text, bool)
    if bare or (match and match[2] is None):
        raise UnitError(f"{shown(text)} has no unit; {_rule(dimension, example)}")
    if match is None:
        raise UnitError(f"{shown(text)} is not a number with a unit; {_rule(dimension, example)}")
    units = _UNITS[dimension]
    if match[2] not in units:
        raise UnitError(f"{shown(text)}: {_unit_problem(match[2], dimension)}; {_rule(dimension, example)}")
    value = float(match[1]) * units[match[2]]
    if value < 0 or not math.isfinite(value):
        raise UnitError(f"{shown(text)} must be finite and not negative; {_rule(dimension, example)}")
    return value


def format_time(duration_s: float) -> str:
    """Return a duration for people, in a unit that suits it: ``1.5 ms``; hours from 1 h, days from 2 d on."""
    if 2 * 86400 <= duration_s < math.inf:
        return f"{duration_s / 86400:.0f} d" if duration_s >= 86400e4 else f"{duration_s / 86400:.4g} d"
    if duration_s >= 3600 or not math.isfinite(duration_s):
        return f"{duration_s / 3600:.4g} h"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(duration_s) >= factor * _ROUNDED_UP:
            return f"{duration_s / factor:.4g} {unit}"
    return f"{duration_s / 1e-9:.4g} ns" if duration_s else "0 s"


def format_bytes(num_bytes: float) -> str:
    """Return a size for people, in the largest of GiB (2^30 bytes), MiB, KiB and B that is not above it."""
    shown, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if abs(round(shown, 2)) < _LARGER_UNIT:
            break
        shown, unit = shown / _LARGER_UNIT, larger
    return f"{shown:.0f} B" if unit == "B" else f"{shown:.2f} {unit}"


def format_rate(rate: float, unit: str) -> str:
    """Return a rate for people with a decimal prefix: ``format_rate(1.48e14, "FLOP/s")`` is ``148 TFLOP/s``."""
    for prefix, factor in reversed(_DECIMAL.items()):
        if abs(rate) >= factor and prefix:
            return f"{rate / factor:.4g} {prefix}{unit}"
    return f"{rate:.4g} {unit}"


def format_tokens_rate(tokens_per_s: float) -> str:
    """Return tokens per second for people: ``199,571 tokens/s``; below 100 with three digits."""
    return f"{tokens_per_s:,.0f} tokens/s" if tokens_per_s >= 100 else f"{tokens_per_s:.3g} tokens/s"


def format_price(usd_per_s: float) -> str:
    """Return the price of time for people: ``2.50 USD/h``."""
    return f"{usd_per_s * _HOUR_S:,.2f} USD/h"


def format_percent(fraction: float, decimals: int = 1) -> str:
    """Return a fraction in per cent: ``12.5 %``."""
    return f"{100 * fraction:.{decimals}f} %"


def format_change(fraction: float, decimals: int = 1) -> str:
    """Return a relative difference in per cent, with its sign: ``+12.5 %``."""
    return f"{100 * fraction:+.{decimals}f} %"


def format_count(number: int, noun: str) -> str:
    """Return a number of things for people, with the plural's s: ``1 row``, ``1,024 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _rule(dimension: Dimension, example: str) -> str:
    allowed = ", ".join(unit for unit in _UNITS[dimension] if unit not in {"µs", "days"})
    return f"a {dimension} needs one of the units {allowed}, e.g. '{example or _EXAMPLES[dimension]}'"


def _unit_problem(unit: str, dimension: Dimension) -> str:
    for other, units in _UNITS.items():
        if unit in units:
            return f"{unit!r} is a unit of {other}, not of {dimension}"
    if re.fullmatch(r"[KMGTP]?b(ps|/s)?|[KMGTP]?bps|[KMGTP]?Bps", unit):
        return f"{unit!r} leaves open whether it means bits or bytes"
    close = [known for known in _UNITS[dimension] if known.lower() == unit.lower()] or difflib.get_close_matches(
        unit, sorted(_UNITS[dimension]), n=1
    )
    return f"{shown(unit)} is not a known unit" + (f" (did you mean {close[0]}?)" if close else "")
