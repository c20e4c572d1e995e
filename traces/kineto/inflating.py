"""Reading of gzip files that may be built to fill the memory: excessive inflation is refused while reading."""

import gzip
import os
from typing import IO, Final

from traces.errors import TraceError

MOST_TIMES: Final = 200
"""Largest inflation ratio. Recorded traces inflate 13 to 21 times, synthetic ones that differ only in times 61."""
WINDOW_BYTES: Final = 64 << 20
"""Inflated bytes over which the ratio is measured, and after which an excessive file is refused."""
MOST_AT_ONCE: Final = 64 << 20
"""Size limit of any part of an archive except its members."""
_CHUNK_BYTES: Final = 1 << 20
_REMEDY: Final = "get the file again from where it comes, or hand it over uncompressed"


class InflatedFile:
    """The contents of a gzip file, read from beginning to end, and again after a seek to the beginning.

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
        """Go to a position, counted from the beginning; forwards by reading."""
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
        """Return the current position in bytes."""
        return self._file.tell()

    def close(self) -> None:
        """Release the gzip file."""
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
    """An uncompressed archive. Raises TraceError if its headers request more than MOST_AT_ONCE bytes."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name = name
        self._file = file
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer at the end."""
        refuse_at_once(self._name, size)
        return self._file.read(size)


def refuse_at_once(name: str, size: int) -> None:
    """Raise TraceError for a request of more bytes than any header has."""
    if size > MOST_AT_ONCE:
        rule = f"the archive has a header of {size:,} bytes, and {MOST_AT_ONCE >> 20} MiB are the most that is read"
        raise TraceError(name, rule, _REMEDY)
