"""The version that the program states."""

import importlib.metadata

from click.testing import CliRunner

from scenarios.command_line import group
from scenarios.version import VERSION


def test_the_stated_version_is_that_of_the_package() -> None:
    """``simulate --version`` and results state the version of the installed package."""
    installed = importlib.metadata.version("meshtwin")
    assert CliRunner().invoke(group, ["--version"]).output == f"simulate, version {installed}\n"
    assert installed == VERSION
