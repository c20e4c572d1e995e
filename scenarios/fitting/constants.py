"""Constants that step times can determine: a framework's (``software.launch``), a profile's (``profile.gemm.step``).

Their names are the keys of a scenario's section ``software`` and of a profile's file.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields, replace

from costmodels.profile import Profile
from costmodels.software import Software
from costmodels.units import format_time
from scenarios.errors import Origin, ScenarioError, nearest
from sim.engine.prices.pricing import ClusterPricing

SOFTWARE: Final = "software"
PROFILE: Final = "profile"
_UNITS: Final = ("", "_s", "_bytes", "_bytes_per_s")
_AT_MOST_1: Final = ("fraction", "quantisation")
"""Last words of fields that are fractions."""


class Constant(Struct, frozen=True):
    """A positive number of a framework (no ``section``) or of a section of a profile. ``field``: in SI units."""

    section: str
    key: str
    field: str

    @property
    def name(self) -> str:
        """Return the constant's name on the command line."""
        return f"{PROFILE}.{self.section}.{self.key}" if self.section else f"{SOFTWARE}.{self.key}"

    @property
    def most(self) -> float:
        """Return the constant's upper limit."""
        return 1.0 if self.section and self.field.endswith(_AT_MOST_1) else float("inf")

    def value(self, software: Software, profile: Profile) -> float:
        """Return the constant's value in a scenario; 0 if it has none."""
        part = getattr(profile, self.section) if self.section else software
        return float(getattr(part, self.field) or 0.0)

    def text(self, value: float) -> str:
        """Return a value of the constant in the notation of files."""
        return format_time(value) if self.field.endswith("_s") and "per_s" not in self.field else f"{value:.4g}"


def parse_constant(name: str) -> Constant:
    """Return the constant of a name. Raises ScenarioError for an unknown name."""
    known = {constant.name: constant for constant in _known()}
    if name not in known:
        close = nearest(name, known)
        beside = [c for c in known.values() if not close or c.section == known[close].section]
        remedy = f"{f'did you mean {close}? ' if close else ''}known: {_listed(beside)}"
        raise ScenarioError(Origin(option="--constant"), "", f"there is no constant {name!r}", remedy)
    return known[name]


def _listed(constants: Iterable[Constant]) -> str:
    """Return all names, grouped by place: ``software.(launch, rank_skew)``."""
    places: dict[str, list[str]] = {}
    for constant in constants:
        place, _, key = constant.name.rpartition(".")
        places.setdefault(place, []).append(key)
    return ", ".join(f"{place}.({', '.join(keys)})" for place, keys in places.items())


def applied(pricing: ClusterPricing, constants: Mapping[Constant, float]) -> ClusterPricing:
    """Return the prices with other constants; a framework's constant is set only if the scenario has it.

    So tables that are fitted together may share some constants and have others of their own.
    """
    own = pricing.software
    software: dict[str, Any] = {
        c.field: value for c, value in constants.items() if not c.section and not _is_default(own, c.field)
    }
    profile = pricing.profile
    for constant, value in constants.items():
        if constant.section:
            section = replace(getattr(profile, constant.section), **{constant.field: value})
            profile = replace(profile, **{constant.section: section})
    return pricing.under(replace(own, **software), profile)


def _known() -> list[Constant]:
    """Return all constants, a framework's first."""
    names = [field.name for field in fields(Software) if field.type is not bool]
    found = [_constant("", name) for name in names if name != "step_spread"]
    for section in fields(Profile):
        if isinstance(section.type, type) and issubclass(section.type, Struct):
            numbers = [field for field in fields(section.type) if field.type is float]
            found += [_constant(section.name, field.name) for field in numbers]
    return found


def _constant(section: str, field: str) -> Constant:
    """Return a constant by its field, whose key has no unit."""
    unit = max((unit for unit in _UNITS if field.endswith(unit)), key=len)
    return Constant(section, field.removesuffix(unit), field)


def _is_default(software: Software, field: str) -> bool:
    return bool(getattr(software, field) == getattr(Software(), field))
