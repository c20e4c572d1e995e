"""Sustained write and read rates of the drive below a folder, for checkpoints."""

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from errno import EINVAL
from pathlib import Path
from time import perf_counter
from typing import Final

from msgspec import Struct

from traces.signals import undisturbed

_BLOCK_BYTES: Final = 1 << 23
_LEAST_BYTES: Final = 1 << 25
_MOST_BYTES: Final = 1 << 32
_MOST_OF_FREE: Final = 0.05
_MOUNTS: Final = Path("/proc/self/mounts")

DIRECT: Final = "the page cache, by O_DIRECT; not what the drive or a hypervisor keeps"
DROPPED: Final = "the page cache, by fdatasync and posix_fadvise; not what the drive or a hypervisor keeps"
NOTHING: Final = "nothing: the page cache may have answered"


class Storage(Struct, frozen=True):
    """The sequential write and read rates of one process on one file, in bytes per second.

    ``bypassed``: the cache that the measurement bypasses. ``filesystem``: type of the file system, if known.
    """

    write_bytes_per_s: float
    read_bytes_per_s: float
    file_bytes: int
    bypassed: str
    filesystem: str


def measure_storage(folder: Path, budget_s: float) -> Storage | None:
    """Return the rates of the drive that holds a folder; None if the drive lacks space or refuses.

    Writes a file without a name for half of the budget, and reads it for the other half. The file has at most 4 GiB and
    5 % of the free space. Transfers are whole blocks of 8 MiB, at least four. No file is left when the process ends.
    """
    try:
        most = min(_MOST_BYTES, int(_MOST_OF_FREE * shutil.disk_usage(folder).free))
        if most < _LEAST_BYTES:
            return None
        with undisturbed():  # no signal may end the process between the creation of the file's name and its removal
            file, bypassed = _opened(folder)
        try:
            return _measured(file, most // _BLOCK_BYTES, budget_s / 2, bypassed, _filesystem(folder))
        finally:
            os.close(file)
    except OSError:
        return None


def _opened(folder: Path) -> tuple[int, str]:
    """Return an open file without a name, outside the page cache if possible, and the cache that it bypasses."""
    direct = getattr(os, "O_DIRECT", 0)
    for flag in (direct, 0) if direct else (0,):
        handle, name = tempfile.mkstemp(dir=folder, prefix=".meshtwin-")
        try:
            file = os.open(name, os.O_RDWR | flag)
        except OSError as error:
            if not flag or error.errno != EINVAL:
                raise
            continue
        finally:
            os.close(handle)
            os.unlink(name)
        return file, DIRECT if flag else DROPPED if hasattr(os, "posix_fadvise") else NOTHING
    raise AssertionError


def _measured(file: int, most_blocks: int, budget_s: float, bypassed: str, filesystem: str) -> Storage:
    with mmap.mmap(-1, _BLOCK_BYTES) as block:  # direct transfers need the alignment of a page
        block.write(os.urandom(_BLOCK_BYTES))

        def write(place: int) -> None:
            done = os.pwrite(file, block, place * _BLOCK_BYTES)
            if done != _BLOCK_BYTES:
                raise OSError

        def read(place: int) -> None:
            if os.preadv(file, [block], place * _BLOCK_BYTES) != _BLOCK_BYTES:
                raise OSError

        begin_s = perf_counter()
        written = _repeated(write, most_blocks, budget_s)
        os.fdatasync(file)
        write_s = perf_counter() - begin_s
        if bypassed == DROPPED:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        begin_s = perf_counter()
        num_read = _repeated(read, written, budget_s)
        read_s = perf_counter() - begin_s
    rates = written * _BLOCK_BYTES / write_s, num_read * _BLOCK_BYTES / read_s
    return Storage(*rates, written * _BLOCK_BYTES, NOTHING if filesystem == "tmpfs" else bypassed, filesystem)


def _repeated(transfer: Callable[[int], None], most: int, budget_s: float) -> int:
    """Return the number of blocks transferred within the time, at least _LEAST_BYTES of data."""
    least, end_s = _LEAST_BYTES // _BLOCK_BYTES, perf_counter() + budget_s
    for place in range(most):
        if place >= least and perf_counter() >= end_s:
            return place
        transfer(place)
    return most


def _filesystem(folder: Path) -> str:
    """Return the type of a folder's file system; an empty text if the system does not report it."""
    if not _MOUNTS.is_file():
        return ""
    mounts = [line.split()[1:3] for line in _MOUNTS.read_text(encoding="utf-8").splitlines()]
    path = folder.resolve()
    above = [(len(where), kind) for where, kind in mounts if path.is_relative_to(where)]
    return max(above)[1] if above else ""
