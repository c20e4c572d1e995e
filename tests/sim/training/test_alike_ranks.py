"""Programs of ranks that are another's under other names are those that are written op by op."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from sim.plan.words.calls import Calls
from sim.plan.words.program import Program
from sim.training.spec.combinations import first_refusal, verdict_on
from sim.training.spec.techniques import TECHNIQUES
from sim.training.steps.builder import StageProgramBuilder, build_dense_training
from tests.sim.jobs import GPT, LLAMA, dense_job
from tests.sim.training.test_combinations import job_of

SIX: dict[str, Any] = {"pp": 6, "model": GPT | {"num_layers": 12}}
JOBS: dict[str, tuple[dict[str, Any], int]] = {
    "1f1b": (SIX | {"dp": 2}, 4),
    "gpipe, recomputed": (SIX | {"schedule": "gpipe", "recompute": "full", "model": LLAMA | {"num_layers": 6}}, 4),
    "virtual stages": (SIX | {"schedule": "interleaved_1f1b", "virtual_stages": 2, "m": 6, "tp": 2}, 4),
    "two parts": (SIX | {"schedule": "zb_h1", "dp": 2, "zero_stage": 1}, 4),
    "there and back": (SIX | {"schedule": "zb_v", "virtual_stages": 2, "m": 12}, 4),
    "sharded gradients": (SIX | {"dp": 2, "zero_stage": 2}, 4),
    "sharded weights": (SIX | {"dp": 2, "zero_stage": 3}, 4),
    "stages of two sizes": (SIX | {"layers_per_stage": (3, 2, 2, 2, 2, 1)}, 4),
    "stages of many sizes": (SIX | {"layers_per_stage": (1, 3, 2, 3, 2, 1)}, 0),
    "some stages recomputed": (SIX | {"recompute_per_stage": ("none", "full", "full", "full", "none", "none")}, 3),
    "assigned gradients": (SIX | {"set_gradients_to_none": True, "low_precision_gradients": True}, 0),
}
"""Jobs, and how many of their ranks are alike; 0: too few, or each may have something of its own."""


@pytest.mark.parametrize("name", JOBS)
def test_a_renamed_program_is_the_written_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank's program is the one that is written for it alone; of alike ranks two are written, and no more."""
    keys, num_alike = JOBS[name]
    job = dense_job(**({"m": 8} | keys))
    written: list[int] = []
    write = StageProgramBuilder.build

    def counted(builder: StageProgramBuilder, calls: Calls) -> Program:
        written.append(builder.rank)
        return write(builder, calls)

    monkeypatch.setattr(StageProgramBuilder, "build", counted)
    plan = build_dense_training(job, "all")
    assert len(written) == 6 - max(num_alike - 2, 0)
    for rank, program in enumerate(plan.programs):
        (alone,) = build_dense_training(job, "alone", only=rank).programs
        assert (list(program.buffers), list(program.tasks)) == (list(alone.buffers), list(alone.tasks))
        assert (program.role, program.buffers, program.tasks) == (alone.role, alone.buffers, alone.tasks)
        assert list(program.calls) == list(alone.calls)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_no_technique_makes_alike_ranks_differ(name: str) -> None:
    """In a pipeline of six, what the fourth and fifth rank get from two others is what is written for them alone."""
    used = verdict_on(name, "pipeline").used
    if first_refusal(used) is not None or used & {"delayed", "local"}:  # neither comes from this builder
        return
    job = job_of(used)
    pipeline, parallel = replace(job.parallel.pipeline, degree=6), job.parallel
    batch = 6 * job.training.microbatch_size * parallel.data_degree
    job = replace(
        job, model=replace(job.model, num_layers=6 * pipeline.virtual_stages),
        parallel=replace(parallel, pipeline=pipeline), training=replace(job.training, global_batch_size=batch),
    )  # fmt: skip
    plan = build_dense_training(job, "all")
    for rank in (3, 4) if len(plan.programs) == 6 else ():
        (alone,) = build_dense_training(job, "alone", only=rank).programs
        assert (plan.programs[rank].buffers, plan.programs[rank].tasks) == (alone.buffers, alone.tasks)


def test_ranks_that_are_no_renaming_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second of alike ranks is not the first one renamed, as a name is not known, all are written."""
    job = dense_job(**SIX, m=8)
    expected = [program.tasks for program in build_dense_training(job, "renamed").programs]
    monkeypatch.setattr("sim.training.steps.alike_ranks._STAGE", re.compile("(of no)(name)"))
    assert [program.tasks for program in build_dense_training(job, "written").programs] == expected
