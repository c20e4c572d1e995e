"""A file of pages on a drive, as the lowest tier of memory. Tensors lie in it where a pool of pages puts them."""

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backends.execution.errors import ExecutionError
from sim.memory.allocators import PAGE_BYTES, PagePool


class PageFileError(ExecutionError):
    """The file of pages cannot be made, or is not what it was; the message names the file."""


@dataclass(slots=True)
class PageFile:
    """A file with room for float64 tensors, reserved when it is made.

    ``sizes``: elements of each tensor. Any thread may read and write; what two threads do with one tensor at a time is
    theirs to agree on. Every read and write opens the file anew, so that a file that is gone or cut is noticed.
    """

    path: Path
    sizes: Mapping[Hashable, int]
    page_bytes: int = PAGE_BYTES
    _pool: PagePool = field(init=False)

    def __post_init__(self) -> None:
        self._pool = PagePool(self.page_bytes)
        for tensor, size in self.sizes.items():
            self._pool.allocate(tensor, 8 * size)
        num_bytes = self.num_bytes
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise PageFileError(f"{self.path} cannot be made: {error.strerror}") from error
        try:
            try:
                os.posix_fallocate(file, 0, num_bytes)
            finally:
                os.close(file)
        except OSError as error:
            self.path.unlink(missing_ok=True)
            room = f"{self.path.parent} has no room for {num_bytes:,} bytes of pages"
            raise PageFileError(f"{room}: {error.strerror}") from error

    @property
    def num_bytes(self) -> int:
        """Return the size of the file."""
        return self._pool.reserved_bytes

    def read(self, tensor: Hashable) -> Tensor:
        """Return a tensor's values. Raises PageFileError."""
        values = np.empty(self.sizes[tensor])
        self._each_part(tensor, values, writes=False)
        return torch.from_numpy(values)

    def write(self, tensor: Hashable, values: Tensor) -> None:
        """Write a tensor's values. Raises PageFileError."""
        self._each_part(tensor, values.numpy(), writes=True)

    def _each_part(self, tensor: Hashable, values: np.ndarray, *, writes: bool) -> None:
        """Move a tensor between memory and its pages."""
        view, done = values.data.cast("B"), 0
        try:
            file = os.open(self.path, os.O_RDWR)
            try:
                if (there := os.fstat(file).st_size) != self.num_bytes:
                    rule = f"{self.path} is cut: {there:,} of {self.num_bytes:,} bytes are there"
                    raise PageFileError(rule)
                for page, begin, end in self._pool.parts[tensor]:
                    piece = view[done : done + end - begin]
                    place = page * self.page_bytes + begin
                    moved = os.pwrite(file, piece, place) if writes else os.preadv(file, [piece], place)
                    if moved != len(piece):
                        raise PageFileError(f"page {page} of {self.path}: {moved:,} of {len(piece):,} bytes were moved")
                    done += len(piece)
            finally:
                os.close(file)
        except FileNotFoundError as error:
            raise PageFileError(f"the page file {self.path} is gone") from error
        except OSError as error:
            raise PageFileError(f"the page file {self.path}: {error.strerror}") from error
