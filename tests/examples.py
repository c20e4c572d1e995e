"""How many random examples a property test tries."""

import os
from typing import Final

_TIMES: Final = float(os.environ.get("MESHTWIN_EXAMPLES", "1"))


def examples(number: int) -> int:
    """Return a number of examples, so many times as large as the environment's MESHTWIN_EXAMPLES asks for."""
    return max(1, round(number * _TIMES))
