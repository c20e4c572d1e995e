"""Run the command blocks of a page, and put what they print into it: ``python -m docs.run_blocks docs/recipes.md``.

A block is fenced as ``console``; its commands follow a ``$``, and what each prints follows the command. A fence
``yaml NAME`` or ``json NAME`` is a file that the commands below it use. ``console measured`` marks output with times of
the machine that ran it.
"""

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from click.testing import CliRunner

from scenarios.command_line import group

_FENCE: Final = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT: Final = "$ "
_MEASURED: Final = "measured"
_FILTERS: Final[Mapping[str, Callable[[list[str], str], list[str]]]] = {
    "head": lambda lines, count: lines[: int(count)],
    "tail": lambda lines, count: lines[-int(count) :],
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of a page, and the lines below it."""

    line: str
    shown: tuple[str, ...]
    is_measured: bool


@dataclass(frozen=True, slots=True)
class File:
    """A file that a page shows in full."""

    name: str
    text: str


def steps_of(text: str) -> Iterator[Command | File]:
    """Yield the files and commands of a page, in order."""
    for language, word, body in _FENCE.findall(text):
        if language in {"yaml", "json"} and word:
            yield File(word, body)
        elif language == "console":
            for part in re.split(r"^(?=\$ )", body, flags=re.MULTILINE):
                if part:
                    first, *shown = part.splitlines()
                    yield Command(first.removeprefix(_PROMPT), tuple(shown), word == _MEASURED)


def run_steps(text: str, leave_out: str = "") -> Iterator[tuple[Command, tuple[str, ...]]]:
    """Yield each command of a page with what it prints, run in a folder with the page's files.

    Commands that have ``leave_out`` in them are not run.

    Raises RuntimeError for a command that fails.
    """
    with TemporaryDirectory() as folder, chdir(folder):
        for step in steps_of(text):
            if isinstance(step, File):
                Path(step.name).write_text(step.text, encoding="utf-8")
            elif not leave_out or leave_out not in step.line:
                yield step, printed_by(step.line)


def printed_by(line: str) -> tuple[str, ...]:
    """Return the lines that ``simulate ...`` prints, warnings first.

    Behind it may stand ``| head -N`` and ``| tail -N``, which warnings pass by.

    Raises RuntimeError for a command that fails.
    """
    command, *filters = (part.strip() for part in line.split(" | "))
    program, *arguments = shlex.split(command)
    if program != "simulate":
        message = f"{line}: pages run simulate alone"
        raise RuntimeError(message)
    done = CliRunner().invoke(group, arguments)
    if done.exit_code:
        message = f"{line}: exit code {done.exit_code}\n{done.output}"
        raise RuntimeError(message) from done.exception
    lines = [text.rstrip() for text in done.stdout.splitlines()]
    for name, what in map(shlex.split, filters):
        lines = _FILTERS[name](lines, what.removeprefix("-"))
    return (*(text.rstrip() for text in done.stderr.splitlines()), *lines)


def refreshed(text: str) -> str:
    """Return a page with what its commands print today."""
    runs = iter(list(run_steps(text)))

    def block(found: re.Match[str]) -> str:
        language, word, body = found.groups()
        if language != "console":
            return found[0]
        parts = []
        for _ in range(len(re.findall(r"^\$ ", body, re.MULTILINE))):
            command, lines = next(runs)
            parts.append("\n".join((_PROMPT + command.line, *lines)) + "\n")
        return f"```{language}{f' {word}' if word else ''}\n{''.join(parts)}```"

    return _FENCE.sub(block, text)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
