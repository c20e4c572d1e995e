"""Read gzip files that may have been made to fill the memory: what inflates too far is refused while it does."""

import gzip
import os
from typing import IO, Final

from traces.errors import TraceError

MOST_TIMES: Final = 200
"""Recorded traces inflate to 13 to 21 times their size, made ones whose events differ in times alone to 61."""
WINDOW_BYTES: Final = 64 << 20
"""Inflated bytes over which that is measured: a file that inflates too far is refused after so many."""
MOST_AT_ONCE: Final = 64 << 20
"""No part of an archive but its members is larger."""
_CHUNK_BYTES: Final = 1 << 20
_REMEDY: Final = "get the file again from where it comes, or hand it over uncompressed"


class InflatedFile:
    """The contents of a gzip file, read from begin to end, and again after a seek to the begin.

    ``read`` and ``seek`` raise TraceError if WINDOW_BYTES of contents come from less than their MOST_TIMES-th part.
    """

    def __init__(self, name: str, packed: IO[bytes]) -> None:
        self._name = name
        self._packed = packed
        self._file = gzip.GzipFile(fileobj=packed, mode="rb")
        self._begin = (0, 0)

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer at the end."""
        refuse_at_once(self._name, size)
        pieces = []
        while size > 0 and (piece := self._file.read(min(size, _CHUNK_BYTES))):
            pieces.append(piece)
            size -= len(piece)
            self._check()
        return b"".join(pieces)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, counted from the begin; forwards by reading."""
        if whence != os.SEEK_SET:
            message = "only places from the begin are known"
            raise ValueError(message)
        if position < self._file.tell():
            self._file.seek(position)
            self._begin = (self._file.tell(), self._packed.tell())
        while (left := position - self._file.tell()) > 0 and self.read(min(left, _CHUNK_BYTES)):
            pass
        return self._file.tell()

    def tell(self) -> int:
        """Return how many bytes come before the next one."""
        return self._file.tell()

    def close(self) -> None:
        """Let the gzip file go."""
        self._file.close()

    def _check(self) -> None:
        inflated, packed = self._file.tell() - self._begin[0], self._packed.tell() - self._begin[1]
        if inflated < WINDOW_BYTES:
            return
        if inflated > MOST_TIMES * max(packed, 1):
            rule = f"it inflates to more than {MOST_TIMES} times its size, the most that is read"
            raise TraceError(self._name, rule, _REMEDY)
        self._begin = (self._file.tell(), self._packed.tell())


class PlainFile:
    """An archive that is not compressed. Raises TraceError where its headers ask for more than MOST_AT_ONCE bytes."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name = name
        self._file = file
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer at the end."""
        refuse_at_once(self._name, size)
        return self._file.read(size)


def refuse_at_once(name: str, size: int) -> None:
    """Raise TraceError for more bytes at a time than any header has."""
    if size > MOST_AT_ONCE:
        rule = f"the archive has a header of {size:,} bytes, and {MOST_AT_ONCE >> 20} MiB are the most that is read"
        raise TraceError(name, rule, _REMEDY)
