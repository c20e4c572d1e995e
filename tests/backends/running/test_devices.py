"""How a CPU's streams run."""

from collections.abc import Sequence
from threading import current_thread

import pytest
import torch
import torch.distributed as dist

from backends.execution.measuring.benchmarks import HandoffBenchmark
from backends.torch.running.devices import CpuDevice
from backends.torch.running.schedule import OpInstance, Schedule, unroll
from backends.torch.running.state import persistent_slots


class Silent:
    """Runs nothing."""

    def start(self, instance: OpInstance) -> Sequence[dist.Work]:
        """Do nothing."""
        del instance
        return ()

    def complete(self, instance: OpInstance, works: Sequence[dist.Work]) -> None:
        """Do nothing."""

    def finish(self, instance: OpInstance) -> None:
        """Do nothing."""


def two_streams() -> Schedule:
    """Return a schedule whose ops take turns on two streams."""
    plan = HandoffBenchmark(hands_over=True).plan(1, 2)
    return unroll(plan.programs[0], persistent_slots(plan, 0, torch.device("cpu")))


def test_every_stream_computes_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP counts per thread: each stream's own thread is told to compute alone, or its products wait for others."""
    told: dict[str, int] = {}
    monkeypatch.setattr(torch, "set_num_threads", lambda count: told.update({current_thread().name: count}))
    CpuDevice().run(two_streams(), Silent(), 0.0, time_ops=True)
    assert told == {"compute": 1, "other": 1}
