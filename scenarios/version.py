"""The program's version, which results state."""

from typing import Final

VERSION: Final = "0.1.0"
"""The package takes its version from here, so a command states it without a search among installed packages."""
