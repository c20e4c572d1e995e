"""PyYAML's loader of plain values: libyaml's, several times as fast, where PyYAML was built with it.

It comes from the module that defines it. The package ``yaml`` also loads the loaders that are written in Python, and
all that writes YAML; its table of printable characters alone takes 3 ms (see ``scenarios/on_use.py``).
"""

from typing import Any

try:
    from yaml.cyaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml.loader import SafeLoader  # type: ignore[assignment]

__all__ = ["SafeLoader", "loaded"]


def loaded(text: str) -> Any:
    """Return the value that a YAML text holds."""
    loader = SafeLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
