"""Python's cycle collector, out of the way of millions of live objects."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused(*, freeze: bool = False) -> Iterator[None]:
    """Keep the collector from walking a graph's objects again and again, of which it can free none.

    ``freeze``: what is alive at the end of the outermost pause stays so until the process ends: it is never walked.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if freeze:
                gc.freeze()
            gc.enable()
