"""From the file of a training step to its scenario."""

from typing import Any

from msgspec.structs import replace

from costmodels.hardware import StorageSpec
from scenarios.errors import ScenarioError
from scenarios.reading import sequence_parallel
from scenarios.reading.clusters.machine import ClusterSpec, cluster_spec, forced_algorithms
from scenarios.reading.clusters.software import software_of
from scenarios.reading.degrees import resolve_degrees
from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.located import located
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.models import moe_systems
from scenarios.reading.models.written_out import written_out
from scenarios.reading.schema.layer_ranges import layers_of
from scenarios.reading.schema.memory import MemorySection
from scenarios.reading.schema.model import HuggingFaceModel, Model, PresetModel
from scenarios.reading.schema.parallel import OsdpSection
from scenarios.reading.sections.section import Section, keys_of, values_of, written_keys
from scenarios.workloads.steps.reading import method_of, pipeline_spec, refuse_many_calls, unless_auto
from scenarios.workloads.steps.transformer import read_transformer
from scenarios.workloads.training.long_run import reading
from scenarios.workloads.training.scenario import TrainingScenario
from scenarios.workloads.training.schema import DenseScenario
from scenarios.workloads.workload import Workload
from sim.memory.spec import ChunkSpec, MemorySpec
from sim.reliability.errors import ReliabilityError
from sim.reliability.spec import OpenReliability, ReliabilitySpec
from sim.training.data import operators
from sim.training.data.axes import training_mesh
from sim.training.errors import SpecError
from sim.training.sequence.registry import sequence_method
from sim.training.spec.job import OsdpSpec, ParallelSpec, ShardingSpec, TrainingSpec, stated_training
from sim.training.spec.method import Method
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.parallelism.mesh_axes import EXPERT_AXIS
from sim.training.tensor.registry import tensor_method


def read_training(document: Document, overrides: tuple[str, ...], kind: Workload[Any]) -> TrainingScenario:
    """Return the scenario of a document. Raises ScenarioError for whatever is wrong with it."""
    checked = check_document(document, DenseScenario)
    if checked.moe is not None:
        if isinstance(checked.model, PresetModel | HuggingFaceModel):
            document = written_out(document, checked.model)
        document = moe_systems.with_moe_system(document, checked.moe.system)
        checked = check_document(document, DenseScenario)
    document, model = read_transformer(document, checked.model, checked.seed, _model_of)
    with located(document):
        cluster = _with_storage(cluster_spec(document, checked.cluster), checked)
    algorithms = forced_algorithms(document, checked.network, cluster)
    parallel = _parallel(document, checked, cluster, model)
    with located(document):
        training = _training(checked)
    num_microbatches = training.global_batch_size // (training.microbatch_size * parallel.data_degree)
    num_passes = max(1, len(parallel.pipeline.token_slices)) * num_microbatches
    refuse_many_calls(document, "global_batch_size", parallel.pipeline.num_virtual_stages, num_passes)
    software = software_of(checked.software)
    with located(document):
        job = stated_training(model=model, training=training, parallel=parallel, seed=checked.seed)
        reliability = _reliability(checked, cluster)
    _refuse_too_many_nodes(document, parallel, cluster)
    _refuse_unlike_hosts(document, parallel, cluster)
    _refuse_unknown_rate(document, training, cluster)
    return TrainingScenario(
        name=checked.name,
        seed=checked.seed,
        source=document.source,
        workload=kind,
        job=job,
        cluster=cluster,
        length_from=_length_from(checked),
        tokens=checked.training.tokens,
        algorithms=algorithms,
        software=software,
        overrides=overrides,
        reliability=reliability,
        document=document,
        as_read=document,
    )


def _training(checked: DenseScenario) -> TrainingSpec:
    section, keys = checked.training, values_of(checked.training)
    del keys["tokens"]
    named = section.recompute_layers
    keys |= {"method": _method(checked), "recompute_layers": None if named is None else layers_of(named)}
    return TrainingSpec(**keys)


def _refuse_unknown_rate(document: Document, training: TrainingSpec, cluster: ClusterSpec) -> None:
    """Raise ScenarioError where a device has no arithmetic rate for what products multiply."""
    for device in cluster.device_types:
        if training.types.product not in device.peak_flop_per_s:
            key, rule = "training.precision", f"{device.name} does not multiply in {training.types.product}"
            remedy = "write precision: bf16, or take nodes whose devices do, as hgx-h100"
            raise ScenarioError(document.origin(key.split(".")), key, rule, remedy)


def _refuse_too_many_nodes(document: Document, parallel: ParallelSpec, cluster: ClusterSpec) -> None:
    """Raise ScenarioError where tokens are sent to more nodes than those that share out experts lie on."""
    if parallel.expert_nodes == 1:
        return
    mesh, per_node, fewest = training_mesh(parallel), cluster.devices_per_node, cluster.num_nodes
    for rank in range(mesh.size):
        if not mesh.index(rank, (EXPERT_AXIS,)):
            fewest = min(fewest, len({member // per_node for member in mesh.group(rank, (EXPERT_AXIS,))}))
    if parallel.expert_nodes > fewest:
        key, degree, nodes = "parallel.expert.nodes", parallel.expert_degree, f"{fewest} node{'s' * (fewest > 1)}"
        rule = f"the {degree} ranks that share out experts lie on {nodes} of {per_node} devices"
        most = max(number for number in range(1, fewest + 1) if degree % number == 0)
        raise ScenarioError(document.origin(key.split(".")), key, rule, f"write {most}" if most > 1 else "leave it out")


def _refuse_unlike_hosts(document: Document, parallel: ParallelSpec, cluster: ClusterSpec) -> None:
    """Raise ScenarioError where hosts are to work that are not all of one type."""
    if not (parallel.sharding.offload is None and parallel.memory is None) and cluster.node_types:
        key, names = (
            "parallel.data.offload" if parallel.memory is None else "memory.manager",
            " and ".join(dict.fromkeys(name for name, _ in cluster.node_types)),
        )
        rule = f"it is not built for hosts of several types, and these are {names}"
        raise ScenarioError(document.origin(key.split(".")), key, rule, "leave it out, or use nodes of one type")


def _reliability(checked: DenseScenario, cluster: ClusterSpec) -> ReliabilitySpec | OpenReliability | None:
    """Return the long run that a scenario asks for, if any. Raises ReliabilityError for rules between its keys."""
    if checked.reliability is None:
        return None
    if checked.reliability.checkpoint.over_steps is not None and cluster.node_types:
        rule = "saving is not simulated on hosts of several types"
        raise ReliabilityError("reliability.checkpoint.over_steps", rule, "write save, or use nodes of one type")
    return reading.reliability_spec(
        checked.reliability,
        num_devices=cluster.world_size,
        num_nics=cluster.num_nics,
        num_nodes=cluster.num_nodes,
        has_drives=cluster.storage is not None,
    )


def _model_of(document: Document) -> Model:
    return check_document(document, DenseScenario).model


def _length_from(checked: DenseScenario) -> str:
    """Return where the sequence length was stated: by the scenario, by its preset, or by a configuration."""
    section = checked.model
    if isinstance(section, PresetModel) and section.sequence_length is None:
        return f"preset {section.preset}"
    if isinstance(section, HuggingFaceModel) and section.sequence_length is None:
        return f"the longest of {section.huggingface}"
    return "model.sequence_length"


def _parallel(document: Document, checked: DenseScenario, cluster: ClusterSpec, model: TransformerSpec) -> ParallelSpec:
    section = checked.parallel
    degrees = resolve_degrees(document, section, cluster.num_nodes, cluster.devices_per_node)
    options = _options(section.tensor)
    if section.tensor.sequence_parallel == "auto":
        del options["sequence_parallel"]
        if section.tensor.method == "1d":
            options["sequence_parallel"] = sequence_parallel.shares_sequence(section, degrees, model.sequence_length)
    with located(document):
        tensor = tensor_method(section.tensor.method, degrees["tensor"], options)
    shared = _options(section.context)
    multiple = tensor.token_multiple(scatters=section.pipeline.scatter_gather)
    with located(document):
        return ParallelSpec(
            tensor=tensor,
            sequence=sequence_method(section.context.method, degrees["context"], shared),
            pipeline=pipeline_spec(
                document, section.pipeline, degrees["pipeline"], _method(checked), (model.sequence_length, multiple)
            ),
            data_degree=degrees["data"],
            expert_degree=section.expert.degree,
            expert_nodes=section.expert.nodes,
            zero_stage=section.data.zero_stage,
            sharding=ShardingSpec(**{name: getattr(section.data, name) for name in ShardingSpec.__struct_fields__}),
            memory=None if checked.memory is None else _memory(checked.memory),
            osdp=None if section.data.osdp is None else _osdp(section.data.osdp, model),
            overlap_gradient_sync=section.data.overlap_gradient_sync,
            overlap_parameter_gather=section.data.overlap_parameter_gather,
            deferred_sync=unless_auto(section.data.deferred_sync),
            bucket_bytes=round(section.data.bucket or 0),
            axis_order=section.axis_order,
        )


def _memory(section: MemorySection) -> MemorySpec:
    """Return how state lies in tiers of memory."""
    gathered = None if section.gathered is None else round(section.gathered)
    return MemorySpec(
        manager=section.manager,
        gathered_bytes=gathered,
        cached_bytes=round(section.cached or 0),
        optimizer_on_drives=section.tiers.nvme is not None,
        parameters_on_drives=section.tiers.nvme is not None and section.tiers.nvme.parameters,
        chunks=_chunks(section),
        allocator=section.allocator,
        update=section.update,
        max_staleness=section.max_staleness,
    )


def _options(section: Section) -> dict[str, Any]:
    """Return the keys of a method that are not at their defaults, its name and its degree apart."""
    values = {name: (getattr(section, name), key.default) for name, key in keys_of(type(section)).items()}
    return {
        name: value for name, (value, default) in values.items()
        if value != default and name not in {"method", "degree"}
    }  # fmt: skip


def _chunks(section: MemorySection) -> ChunkSpec | None:
    """Return the options of chunks, as far as they are stated; None where another manager states none."""
    stated: dict[str, Any] = {} if section.placement is None else {"placement": section.placement}
    if section.chunk is not None:
        stated["chunk_bytes"] = round(section.chunk)
    if section.offload is not None:
        stated |= values_of(section.offload)
    if section.gradients_in_chunks:
        stated["holds_gradients"] = True
    return ChunkSpec(**stated) if stated or section.manager == "gemini" else None


def _with_storage(cluster: ClusterSpec, checked: DenseScenario) -> ClusterSpec:
    """Return a cluster whose nodes have the drives that the scenario states, if any.

    Raises ReliabilityError for drives that are stated twice.
    """
    of_tiers = None if checked.memory is None else checked.memory.tiers.nvme
    of_checkpoints = None if checked.reliability is None else checked.reliability.checkpoint.drives
    if of_tiers is not None and of_checkpoints is not None:
        rule, remedy = "memory.tiers.nvme states the same drives", "leave one of them out"
        raise ReliabilityError("reliability.checkpoint.drives", rule, remedy)
    drives = of_tiers or of_checkpoints
    if drives is None:
        return cluster
    storage = StorageSpec(
        capacity_bytes=round(drives.capacity), bandwidth_bytes_per_s=drives.bandwidth, latency_s=drives.latency
    )
    return replace(cluster, storage=storage)


def _osdp(section: OsdpSection, model: TransformerSpec) -> OsdpSpec:
    """Return what sharding operator by operator may do; which operators, is chosen later where no layers are named.

    Raises SpecError for named layers that the model has not, and for options of a choice beside them.
    """
    limit = None if section.memory_limit is None else round(section.memory_limit)
    choices = None
    if section.layers is not None:
        layers, key = layers_of(section.layers), "parallel.data.osdp.layers"
        if beside := written_keys(section) & {"memory_limit", "splits", "gap"}:
            rule = f"the sharded layers are named, and {' and '.join(sorted(beside))} would choose them"
            raise SpecError(key, rule, "leave one of them out")
        if layers and max(layers) >= model.num_layers:
            rule = f"layer {max(layers)} is named, and the model has layers 0 to {model.num_layers - 1}"
            raise SpecError(key, rule, "name layers of the model")
        choices = operators.choices_of_layers(model, layers, ends=bool(section.ends))
    elif section.ends is not None:
        rule = "it goes with named layers, and none are"
        raise SpecError("parallel.data.osdp.ends", rule, "leave it out, or write parallel.data.osdp.layers")
    return OsdpSpec(memory_limit_bytes=limit, splits=section.splits, gap=section.gap, choices=choices)


def _method(checked: DenseScenario) -> Method:
    return method_of(checked.training, checked.parallel.pipeline.schedule)
