"""Pictures that commands write: the ending of the name, and what to say where one cannot be written."""

from collections.abc import Callable, Collection
from pathlib import Path

from scenarios.errors import Origin, ScenarioError


def refuse_suffix(out: Path, suffixes: Collection[str], what: str = "picture") -> None:
    """Raise ScenarioError where a file's name has none of these endings."""
    if out.suffix.lower() not in suffixes:
        rule = f"{out.suffix or 'a name without ending'} is no kind of {what}"
        raise ScenarioError(Origin(option=f"--out {out}"), "", rule, f"write a name that ends in {', '.join(suffixes)}")


def written(out: Path, write: Callable[[], None], what: str = "picture") -> None:
    """Write a file, or raise ScenarioError that says why it cannot be written."""
    try:
        write()
    except OSError as error:
        rule = f"the {what} cannot be written: {(error.strerror or str(error)).lower()}"
        remedy = "name a file in a directory that you may write to"
        raise ScenarioError(Origin(option=f"--out {out}"), "", rule, remedy) from error
