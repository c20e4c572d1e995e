"""What a search may use: processes, time, and simulations that are known from before."""

import math
from collections.abc import Callable
from concurrent.futures import Executor
from time import monotonic
from typing import Final

from msgspec import Struct

from scenarios.planning.kept import KeptProofs

BUDGETS_S: Final = (1.0, 7 * 86_400.0)
"""The least and the most that a search may take, in seconds."""


def _unheard() -> None:
    pass


class Resources(Struct, frozen=True):
    """``workers``: what simulates. ``kept``: simulations from before. ``ends_at_s``: when to end, by ``monotonic``.

    ``tick``: called once for each simulation that is done, from any thread.
    """

    workers: Executor
    kept: KeptProofs | None = None
    ends_at_s: float = math.inf
    tick: Callable[[], None] = _unheard

    @property
    def out_of_time(self) -> bool:
        """Return whether the search should end."""
        return monotonic() >= self.ends_at_s
