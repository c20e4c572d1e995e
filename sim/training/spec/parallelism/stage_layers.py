"""The layers of each virtual stage."""

from sim.training.errors import SpecError
from sim.training.pipeline.spec import PipelineSpec


def split_layers(num_layers: int, pipeline: PipelineSpec) -> tuple[int, ...]:
    """Return the number of layers of every virtual stage, in model order.

    The first rule that fits: layers divide evenly; or layers divide evenly with embedding and head counted as a layer
    each (Megatron-core's account_for_embedding_in_pipeline_split; Llama 3's 126 layers on 16 stages, or on 128 stages,
    where the end stages have none); or the remainder goes one layer each to the earliest stages after the first.
    """
    stages = pipeline.num_virtual_stages
    if pipeline.layers_per_stage:
        given = pipeline.layers_per_stage
        empty = next((stage for stage, num in enumerate(given) if num < 1), None)
        if empty is not None:
            raise SpecError(
                "parallel.pipeline.layers_per_stage",
                f"every virtual stage has 1 layer or more, number {empty} of the list is {given[empty]}",
                f"list {stages} numbers of 1 or more that add up to {num_layers}",
            )
        if len(given) != stages or sum(given) != num_layers:
            raise SpecError(
                "parallel.pipeline.layers_per_stage",
                f"{len(given)} stages with {sum(given)} layers in all, "
                f"where {stages} virtual stages must hold {num_layers} layers",
                f"list {stages} numbers that add up to {num_layers}",
            )
        return given
    if num_layers < stages and num_layers + 2 != stages:
        raise SpecError(
            "parallel.pipeline.degree",
            f"{num_layers} layers cannot fill {stages} virtual stages "
            f"(degree {pipeline.degree} x virtual_stages {pipeline.virtual_stages})",
            "choose a smaller degree or fewer virtual stages",
        )
    base, rest = divmod(num_layers, stages)
    if rest and (num_layers + 2) % stages == 0:
        inner = (num_layers + 2) // stages
        return (inner - 1, *[inner] * (stages - 2), inner - 1)
    extra = {(1 + i) % stages for i in range(rest)}
    return tuple(base + (i in extra) for i in range(stages))
