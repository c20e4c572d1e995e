"""The drive below a folder is measured past the page cache where that can be, and nothing stays behind."""

import os
import shutil
from errno import EINVAL
from pathlib import Path
from typing import Any

import pytest

from backends.execution.measuring import storage
from backends.execution.measuring.storage import DIRECT, DROPPED, NOTHING, measure_storage


def test_rates_are_those_of_the_file_and_nothing_is_left(tmp_path: Path) -> None:
    """Whole blocks go to the drive and come back, in about the time allowed, and the folder is empty again."""
    found = measure_storage(tmp_path, 0.2)
    assert found is not None
    assert found.file_bytes >= 1 << 25
    assert found.file_bytes % (1 << 23) == 0
    assert found.write_bytes_per_s > 1e6
    assert found.read_bytes_per_s > 1e6
    assert found.bypassed in {DIRECT, DROPPED, NOTHING}
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_is_known_gives_known_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every look at the clock finds it a second later, rates are bytes over the seconds between the looks."""
    clock = iter(range(1000))
    monkeypatch.setattr(storage, "perf_counter", lambda: float(next(clock)))
    found = measure_storage(tmp_path, 8.0)
    assert found is not None
    blocks = found.file_bytes >> 23
    assert blocks == 7  # four without a look at the clock, three before four seconds are over
    assert found.write_bytes_per_s == pytest.approx(found.file_bytes / (2 + blocks - 4 + 1))


def test_without_direct_transfers_the_page_cache_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses O_DIRECT is measured all the same, and the result says how."""
    plain, dropped = os.open, []

    def refusing(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(EINVAL, "no direct transfers")
        return plain(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: dropped.append(arguments))
    monkeypatch.setattr(storage, "_filesystem", lambda _: "ext4")
    found = measure_storage(tmp_path, 0.05)
    assert found is not None
    assert found.bypassed == DROPPED
    assert len(dropped) == 1
    assert list(tmp_path.iterdir()) == []


def test_files_in_memory_are_not_called_a_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tmpfs nothing can be bypassed, and the result says so."""
    monkeypatch.setattr(storage, "_filesystem", lambda _: "tmpfs")
    found = measure_storage(tmp_path, 0.05)
    assert found is not None
    assert found.bypassed == NOTHING


def test_a_full_drive_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little room nothing is written, and a drive that refuses gives no figure rather than a wrong one."""
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 28)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert measure_storage(tmp_path, 0.05) is None
    monkeypatch.undo()
    assert measure_storage(tmp_path / "missing", 0.05) is None
