"""The framework of a scenario."""

from typing import Final

from costmodels.software import Software
from scenarios.reading.schema.cluster import SoftwareSection

_UNITS: Final = ("_s", "_bytes")


def software_of(section: SoftwareSection) -> Software:
    """Return the framework's constants: every key is the field of its name."""
    return Software(**{name: getattr(section, _key_of(name)) for name in Software.__struct_fields__})


def _key_of(name: str) -> str:
    """Return the key of a field: its name without the unit."""
    return next((name.removesuffix(unit) for unit in _UNITS if name.endswith(unit)), name)
