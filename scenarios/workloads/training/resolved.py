"""What a training scenario comes to, for its result."""

from collections.abc import Mapping

from costmodels.profile import load_profile
from scenarios.reading.clusters.machine import ClusterSpec
from scenarios.summaries.steps.resolved import Resolved
from scenarios.version import VERSION
from sim.training.spec.job import TrainingJob


def resolved_step(job: TrainingJob, cluster: ClusterSpec, length_from: str) -> Resolved:
    """Return the sizes and choices of a job on a cluster. ``length_from``: where its sequence length was stated."""
    parallel, training, model = job.parallel, job.training, job.model
    profile = cluster.calibrated.profile if cluster.calibrated else load_profile(cluster.node_spec.device.profile)
    return Resolved(
        version=VERSION,
        nodes=_nodes(cluster),
        devices_per_node=cluster.devices_per_node,
        profile=profile.name,
        profile_basis=profile.basis,
        num_parameters=model.num_parameters,
        sequence_length=model.sequence_length,
        sequence_length_from=length_from,
        tokens_per_step=training.global_batch_size * model.sequence_length,
        global_batch_size=training.global_batch_size,
        microbatch_size=training.microbatch_size,
        num_microbatches=job.num_microbatches,
        degrees={
            "tensor": parallel.tensor.degree,
            "context": parallel.context_degree,
            "pipeline": parallel.pipeline.degree,
            "data": parallel.data_degree,
            "expert": parallel.expert_degree,
        },
        tensor_method=parallel.tensor.name,
        tensor_mesh=parallel.tensor.mesh_sides,
        sequence_parallel=parallel.tensor.name == "1d" and parallel.tensor.cuts_residual,
        schedule=parallel.pipeline.schedule,
        precision=training.precision,
        recompute=training.recompute,
        recompute_num_layers=training.recompute_num_layers,
        recompute_method=training.recompute_chosen,
        recompute_layers=training.recompute_layers,
        zero_stage=parallel.zero_stage,
    )


def _nodes(cluster: ClusterSpec) -> Mapping[str, int]:
    """Return the number of nodes of each type."""
    counts: dict[str, int] = {}
    for name, count in cluster.node_types or ((cluster.node, cluster.num_nodes),):
        counts[name] = counts.get(name, 0) + count
    return counts
