"""Moves of layers from one pipeline rank to another."""

from msgspec.structs import replace

from sim.training.errors import SpecError
from sim.training.spec.job import DenseTraining, split_layers


def with_layers_moved(job: DenseTraining, source: int, target: int, count: int = 1) -> DenseTraining:
    """Return a job with layers moved between virtual stages; ``adjusted`` then moves their buffers.

        job = with_layers_moved(job, source=0, target=1)
        plan = adjusted(build_dense_training(job, "next"), session.residents)

    Stage ``source`` loses ``count`` layers, stage ``target`` gains them. Stages hold layers in model order. So if the
    two stages are not neighbours, every stage between them also passes layers on.

    Raises SpecError if the source has fewer layers.
    """
    layers = list(split_layers(job.model.num_layers, job.parallel.pipeline))
    if not 0 <= count <= layers[source]:
        rule = f"stage {source} has {layers[source]} layers, {count} are to go to stage {target}"
        raise SpecError("pipeline.layers_per_stage", rule, "move as many layers as there are")
    layers[source] -= count
    layers[target] += count
    pipeline = replace(job.parallel.pipeline, layers_per_stage=tuple(layers))
    return replace(job, parallel=replace(job.parallel, pipeline=pipeline))
