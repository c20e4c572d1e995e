"""Errors of the scenarios room.

ScenarioError (ValueError): input that the user must change; says where, which key, which rule, what instead.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Final
from unicodedata import category

from msgspec import Struct

_PLAIN: Final = re.compile(r"[ -~\n]*")
"""Text that needs no second look."""
_LONGEST_WORD: Final = 1_000
_KEPT: Final = (600, 200)
"""Characters of the beginning and the end of a longer word that a message keeps."""


class Origin(Struct, frozen=True):
    """Where an input value was written: a line of a file, or a command line option."""

    file: str = ""
    line: int = 0
    option: str = ""
    """The option as typed, ``--set seed=1``; takes the place of file and line in messages."""
    from_shell: bool = False
    """Typed on the command line: paths in it begin at the working directory, not at the folder of a file."""

    def __str__(self) -> str:
        if self.option:
            return self.option
        return f"{self.file}:{self.line}" if self.line else self.file


class ScenarioError(ValueError):
    """Input that breaks a rule, with everything its writer needs to mend it.

    ``key`` is the scenario key (``parallel.tensor.degree``) or empty where no key is concerned; ``rule`` what
    is broken, both sides worked out; ``remedy`` what to write instead; ``num_more`` how many further
    problems were found and not reported.
    """

    def __init__(self, origin: Origin, key: str, rule: str, remedy: str, *, num_more: int = 0) -> None:
        where = f"{origin}: " if str(origin) else ""
        named = f"{key}: " if key else ""
        more = f"\n({num_more} more problem{'s' if num_more > 1 else ''} after this one)" if num_more else ""
        super().__init__(printable(f"{where}{named}{rule};\n    {remedy}{more}"))
        self.origin = origin
        self.key = key
        self.rule = rule
        self.remedy = remedy
        self.num_more = num_more

    @property
    def file(self) -> str:
        """Return the file that holds the broken rule, empty if none does."""
        return self.origin.file

    @property
    def line(self) -> int:
        """Return the line in the file, counted from 1; 0 where no line is concerned."""
        return self.origin.line


def printable(text: str) -> str:
    """Return ``text`` safe to print: characters that steer a terminal, or turn text round, as escapes; lines kept.

    These are all that Unicode does not call printable (control and format characters, lone surrogates), but spaces.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(c if _is_shown(c) else c.encode("unicode_escape").decode() for c in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character == "\n" or category(character) == "Zs"


def message_text(text: str) -> str:
    """Return a message as people get it: safe to print, and words that no one would read cut in their middle."""
    begin, end = _KEPT
    return re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", lambda word: f"{word[0][:begin]}...{word[0][-end:]}", printable(text))


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known word most like ``word``, or an empty string if none is alike, to at least ``cutoff`` of 1."""
    lower = {name.lower(): name for name in sorted(known, reverse=True)}
    close = difflib.get_close_matches(word.lower(), sorted(lower), n=1, cutoff=cutoff)
    return lower[close[0]] if close else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a remedy for an unknown word: the nearest known one, then all that are known."""
    names = sorted(known)
    close = nearest(word, names)
    listed = ", ".join(names[:30]) + (f", ... ({len(names)} in all)" if len(names) > 30 else "")
    return f"did you mean {close}? known: {listed}" if close else f"known: {listed}"
