"""Texts of other people inside a page: as HTML, and as data of a script. No page puts them there in another way."""

import html
import json
from typing import Any, Final

from scenarios.errors import printable

_IN_SCRIPTS: Final = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"})
"""Signs that end a script, or begin what a browser takes for a comment in it; JSON has them in strings alone."""


def escape(text: str) -> str:
    """Return text for HTML, in elements and in quoted attributes: ``<b>`` is shown, not obeyed."""
    return html.escape(printable(text))


def script_json(value: Any) -> str:
    """Return plain values as JSON that may stand inside ``<script>``. Raises ValueError for numbers that JSON lacks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_IN_SCRIPTS)
