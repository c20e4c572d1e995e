"""Options that commands share, and options that are handed on together."""

import click
from click.testing import CliRunner
from msgspec import Struct

from scenarios.commands.shared.options import bundling


class Size(Struct, frozen=True):
    """Two options."""

    width: int
    height: int


class Colour(Struct, frozen=True):
    """One option."""

    hue: str


@click.command()
@click.option("--width", type=int, default=2)
@click.option("--height", type=int, default=3)
@click.option("--hue", default="red")
@click.option("--name", default="box")
@bundling(Size)
@bundling(Colour)
def draw(size: Size, colour: Colour, name: str) -> None:
    """Print what was given."""
    click.echo(f"{size} {colour} {name}")


def test_options_come_as_the_records_that_they_belong_to() -> None:
    """Options named as fields make one record of each kind, upper ones first; the others come by themselves."""
    shown = CliRunner().invoke(draw, ["--height", "5", "--name", "door"], catch_exceptions=False).output
    assert shown == "Size(width=2, height=5) Colour(hue='red') door\n"


def test_a_command_keeps_its_own_name_and_words() -> None:
    """Help shows the command's own docstring and all of its options."""
    shown = CliRunner().invoke(draw, ["--help"]).output
    assert "Print what was given." in shown
    assert all(f"--{name}" in shown for name in ("width", "height", "hue", "name"))
