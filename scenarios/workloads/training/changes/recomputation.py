"""Changes of what backward computes again: another level for all layers, with the keys that the present one has."""

from collections.abc import Iterator
from typing import Final

from scenarios.workloads.steps.findings.changes import Overrides
from sim.training.pipeline.spec import Recompute
from sim.training.spec.job import TrainingJob

_OF_SOME_LAYERS: Final = ("recompute_num_layers", "recompute_method", "recompute_layers")


def recomputing(job: TrainingJob, level: Recompute) -> Overrides:
    """Return overrides with which backward treats all layers alike; none where it does so already.

    Keys that choose some of the layers, and options that ``level`` does not have, are taken back: beside them the
    scenario's rules would refuse the level.
    """
    per_stage = job.parallel.pipeline.recompute_per_stage
    some = [f"training.{name}=null" for name in _OF_SOME_LAYERS if getattr(job.training, name) is not None]
    if not some and {*(per_stage or (job.training.recompute,))} == {level}:
        return ()
    listed = ("parallel.pipeline.recompute_per_stage=[]",) if per_stage else ()
    return (*listed, *some, *_options(job, level), f"training.recompute={level}")


def _options(job: TrainingJob, level: Recompute) -> Iterator[str]:
    if level == "none" and job.training.checkpoint_early_stop:
        yield "training.checkpoint_early_stop=false"
    if level != "full" and (option := job.parallel.tensor.option_of_recomputation):
        yield f"parallel.tensor.{option}=false"
