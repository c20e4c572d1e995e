"""Reading of one mapping of a topology's description, key by key, with errors that name the key."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from costmodels.errors import UnitError
from costmodels.units import Dimension, parse_quantity
from sim.cluster.topology.errors import MOST_SHOWN, TopologyError, quoted
from sim.cluster.topology.links import Cable

Word = TypeVar("Word", bound=str)

CABLE_KEYS = ("bandwidth", "latency", "message")
MOST = 1_000_000
"""Largest count: anything larger is most likely a typing error, and could not be built."""
BANDWIDTHS = (1.0, 1e18)
"""Bytes per second of the slowest and the fastest link that are accepted."""
LONGEST_S = 3600.0
MOST_TIMES = 1e6
"""Largest factor: for the slowdown of a straggler, and for oversubscription."""


class Section(Struct, frozen=True):
    """A mapping and its key. A value may be written as ``{value: ..., source: ...}``.

    ``or_base``: an example of the catalogue, if the key ``base`` may name an entry that supplies missing keys.
    """

    where: str
    entries: Mapping[str, Any]
    or_base: str = ""

    @classmethod
    def of(cls, value: object, where: str, allowed: Sequence[str], or_base: str = "") -> "Section":
        """Return the section. Raises TopologyError unless it is a mapping with no other keys than these."""
        if not isinstance(value, Mapping):
            raise TopologyError(
                where, f"{quoted(value)} is not a mapping", f"write keys below it: {', '.join(allowed)}"
            )
        for key in value:
            if key not in allowed:
                close = difflib.get_close_matches(str(key), allowed, n=1)
                hint = f"did you mean {close[0]}? " if close else ""
                raise TopologyError(
                    dotted(where, str(key)[:MOST_SHOWN]), "unknown key", f"{hint}known: {', '.join(allowed)}"
                )
        return cls(where, value, or_base)

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def key(self, name: str) -> str:
        """Return a key's full name."""
        return dotted(self.where, name)

    def get(self, key: str) -> Any:
        """Return a value without its source. Raises TopologyError if it is missing."""
        if key not in self.entries:
            raise self._missing(key)
        value = self.entries[key]
        return value["value"] if isinstance(value, Mapping) and "value" in value else value

    def _missing(self, key: str) -> TopologyError:
        """Return the error of a missing key. The remedy: add the key, or name an entry of the catalogue as base."""
        place = self.where or "the topology"
        base = f", or base: to change keys of the catalogue's, as in base: {self.or_base}" if self.or_base else ""
        return TopologyError(self.key(key), "the key is required and missing", f"add {key}: to {place}{base}")

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number of at least ``least``."""
        if default is not None and key not in self.entries:
            return default
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
            rule = f"a whole number from {least} to {MOST:,} belongs here, not {quoted(value)}"
            raise TopologyError(self.key(key), rule, "write it without quotes or unit, as in 8")
        return value

    def factor(self, key: str, default: float | None = None) -> float:
        """Return a number from 1 to ``MOST_TIMES``."""
        if default is not None and key not in self.entries:
            return default
        value = self.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value <= MOST_TIMES:
            rule = f"{quoted(value)} is not a number from 1 to {MOST_TIMES:,.0f}"
            raise TopologyError(self.key(key), rule, "write it without quotes or unit, as in 1.5")
        return float(value)

    def flag(self, key: str) -> bool:
        """Return true or false; false where the key is missing."""
        value = self.get(key) if key in self.entries else False
        if not isinstance(value, bool):
            rule = f"true or false belongs here, not {quoted(value)}"
            raise TopologyError(self.key(key), rule, "write it without quotes")
        return value

    def word(self, key: str, choices: Sequence[Word], default: Word | None = None) -> Word:
        """Return one of some words."""
        if default is not None and key not in self.entries:
            return default
        value = self.get(key)
        for choice in choices:
            if value == choice:
                return choice
        close = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise TopologyError(self.key(key), f"there is no {quoted(value)}", f"{hint}known: {', '.join(choices)}")

    def cable(self, key: str, *, sized: bool = True) -> Cable | None:
        """Return one direction of a link, None if the key is missing; ``sized``: the bandwidth is required.

        An optional bandwidth that is missing is 0.
        """
        if key not in self.entries:
            return None
        section = Section.of(self.entries[key], self.key(key), CABLE_KEYS)
        bandwidth = section.quantity("bandwidth", Dimension.BANDWIDTH) if sized or "bandwidth" in section else 0.0
        if "bandwidth" in section and not BANDWIDTHS[0] <= bandwidth <= BANDWIDTHS[1]:
            rule = "must be more than 0" if not bandwidth else f"no link carries {quoted(section.get('bandwidth'))}"
            raise TopologyError(section.key("bandwidth"), rule, "write it as in '400 Gbit/s'")
        latency, message = (
            section.quantity(name, Dimension.TIME) if name in section else 0.0 for name in ("latency", "message")
        )
        for name, seconds in (("latency", latency), ("message", message)):
            if seconds > LONGEST_S:
                rule = f"no link takes {quoted(section.get(name))}"
                raise TopologyError(section.key(name), rule, "write it as in '1.5 us'")
        return Cable(bandwidth_bytes_per_s=bandwidth, latency_s=latency, message_s=message)

    def needed_cable(self, key: str) -> Cable:
        """Return one direction of a link whose key is required."""
        cable = self.cable(key)
        if cable is None:
            raise self._missing(key)
        return cable

    def quantity(self, key: str, dimension: Dimension) -> float:
        """Return a quantity in SI units. A quantity for both directions together must be twice the value."""
        value = self.get(key)
        try:
            amount = parse_quantity(value, dimension)
            entry = self.entries[key]
            if isinstance(entry, Mapping) and "bidirectional" in entry:
                both = parse_quantity(entry["bidirectional"], dimension)
                if both != 2 * amount:
                    rule = f"{quoted(value)} per direction is not half of {quoted(entry['bidirectional'])} for both"
                    raise TopologyError(self.key(key), rule, "correct one of the two")
        except UnitError as error:
            rule, _, remedy = str(error).rpartition("; ")
            raise TopologyError(self.key(key), rule, remedy) from error
        return amount


def dotted(where: str, key: str) -> str:
    """Return the full name of a key below another."""
    return f"{where}.{key}" if where else key
