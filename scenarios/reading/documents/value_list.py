"""Several values of one key in a command line option, as YAML between commas."""

import re
from collections.abc import Iterator
from typing import Final

from scenarios.errors import Origin, ScenarioError

_QUOTED: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*\"""")
_CLOSING: Final = {"[": "]", "{": "}"}


def split_values(text: str, origin: Origin) -> Iterator[str]:
    """Yield the values between commas that are in no bracket and no quotes.

    Raises ScenarioError, with the option's origin, for a value that is missing and a bracket that is not closed.
    """
    start, place, open_brackets, before = 0, 0, list[str](), ","
    while place < len(text):
        sign = text[place]
        if sign in "'\"" and before in ",[{:":
            quoted = _QUOTED.match(text, place)
            if quoted is None:
                raise _unbalanced(origin, f"{sign} is missing at the end")
            place = quoted.end() - 1
        elif sign in _CLOSING:
            open_brackets.append(_CLOSING[sign])
        elif sign in _CLOSING.values():
            if not open_brackets or open_brackets.pop() != sign:
                raise _unbalanced(origin, f"{sign} closes no bracket")
        elif sign == "," and not open_brackets:
            yield _value(text[start:place], origin)
            start = place + 1
        before = before if sign.isspace() else sign
        place += 1
    if open_brackets:
        raise _unbalanced(origin, f"{open_brackets[-1]} is missing at the end")
    yield _value(text[start:], origin)


def _value(text: str, origin: Origin) -> str:
    if not text.strip():
        rule = "a value is missing between, before or after commas"
        raise ScenarioError(origin, "", rule, "write --set key=a,b; a value with a comma in quotes")
    return text.strip()


def _unbalanced(origin: Origin, rule: str) -> ScenarioError:
    remedy = "close every bracket and quote; lists as in --set key=[1,2],[2,1], text with brackets in quotes"
    return ScenarioError(origin, "", rule, remedy)
