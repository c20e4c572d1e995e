"""What a job may leave to prices: it is a type of its own until it is decided."""

from typing import Any

import pytest
from msgspec.structs import replace

from sim.memory.spec import ChunkSpec, MemorySpec
from sim.training.errors import SpecError
from sim.training.spec.job import DenseTraining, OpenTraining, OsdpSpec, stated_training
from sim.training.spec.openings import Opening
from sim.training.spec.parallelism.sharding import Choice
from tests.sim.jobs import dense_job, job_parts, open_job

OPEN: dict[Opening, dict[str, Any]] = {
    Opening.TOKEN_SLICES: {"pp": 2, "m": 2, "schedule": "terapipe"},
    Opening.ORDER: {"pp": 2, "m": 2, "schedule": "zb_auto"},
    Opening.DEFERRED_SYNC: {"pp": 2, "m": 2, "schedule": "aiao", "virtual_stages": 2},
    Opening.OPERATORS: {"osdp": OsdpSpec()},
    Opening.CAPACITY: {"zero_stage": 3, "memory": MemorySpec(manager="gemini", chunks=ChunkSpec(placement="auto"))},
}
DECIDED: dict[Opening, dict[str, Any]] = {
    Opening.TOKEN_SLICES: {"token_slices": (16, 16)},
    Opening.ORDER: {"schedule": "zb_h1"},
    Opening.DEFERRED_SYNC: {"deferred_sync": 0.25},
    Opening.OPERATORS: {"osdp": OsdpSpec(choices=(("layer0.qkv", Choice(1, 1)),))},
    Opening.CAPACITY: {
        "memory": MemorySpec(manager="gemini", chunks=ChunkSpec(placement="auto", capacity_bytes=1 << 30))
    },
}


@pytest.mark.parametrize("opening", Opening)
def test_a_stated_job_is_open_or_decided(opening: Opening) -> None:
    """A job is of the one type where it leaves something open, and of the other where that is stated."""
    stated = stated_training(**job_parts(dp=2, **OPEN[opening]))
    assert isinstance(stated, OpenTraining)
    assert stated.opening is opening
    assert isinstance(stated_training(**job_parts(dp=2, **OPEN[opening] | DECIDED[opening])), DenseTraining)


@pytest.mark.parametrize("opening", Opening)
def test_a_decided_job_has_no_holes(opening: Opening) -> None:
    """What builders take cannot be made while something is open, and the error names its key."""
    with pytest.raises(SpecError, match="left to prices") as refused:
        dense_job(dp=2, **OPEN[opening])
    assert refused.value.key == opening.value
    stated = open_job(dp=2, **OPEN[opening])
    with pytest.raises(SpecError, match="left to prices"):
        stated.decided(stated.parallel)


def test_an_open_job_leaves_something_open() -> None:
    """The two types have no job in common."""
    with pytest.raises(ValueError, match="leaves nothing"):
        open_job(dp=2)


@pytest.mark.parametrize("opening", [opening for opening in Opening if opening is not Opening.OPERATORS])
def test_a_job_leaves_one_thing_open_at_most(opening: Opening) -> None:
    """Operators are not chosen under the schedules that leave something open, and these are values of one key."""
    with pytest.raises(SpecError, match="osdp"):
        open_job(dp=2, **OPEN[opening], osdp=OsdpSpec())


def test_nobody_to_share_with_leaves_nothing_open() -> None:
    """On one replica nothing is deferred, and no operator is sharded."""
    alone = dense_job(dp=1, **OPEN[Opening.DEFERRED_SYNC])
    assert (alone.deferred_part, alone.operator_choices) == (0.0, {})
    assert replace(alone, parallel=replace(alone.parallel, deferred_sync=0.5)).deferred_part == 0.5
