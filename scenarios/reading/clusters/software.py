"""The framework of a scenario."""

from dataclasses import fields
from typing import Final

from costmodels.software import Software
from scenarios.reading.schema.cluster import SoftwareSection

_UNIT: Final = "_s"


def software_of(section: SoftwareSection) -> Software:
    """Return the framework's constants: every key is the field of its name."""
    return Software(**{field.name: getattr(section, field.name.removesuffix(_UNIT)) for field in fields(Software)})
