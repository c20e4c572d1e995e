"""Turn a scenario file into the typed, checked specifications that the builders take.

Reading checks shape (yaml_tree), keys and types (schema); here the rules between keys are checked, and the
specifications' own errors get the file and line of the key that they name.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from costmodels.software import Software
from scenarios.errors import Origin, ScenarioError, suggestion
from scenarios.reading.actions import read_actions
from scenarios.reading.checking import check_document
from scenarios.reading.degrees import resolve_degrees
from scenarios.reading.huggingface import read_model
from scenarios.reading.machine import ClusterSpec, cluster_spec, forced_algorithms
from scenarios.reading.model_presets import load_presets
from scenarios.reading.overrides import apply_overrides
from scenarios.reading.reliability import reliability_spec
from scenarios.reading.schema.model import GptModel, HuggingFaceModel, LlamaModel, PresetModel
from scenarios.reading.schema.parallel import DelayPipelineSection, OsdpSection, PipelineSection
from scenarios.reading.schema.scenario import DelayScenario, DenseScenario, scenario_class
from scenarios.reading.schema.values import MAX_MICROBATCHES
from scenarios.reading.software import software_of
from scenarios.reading.token_slices import stated_slices
from scenarios.reading.yaml_tree import Document, KeyPath, read_document
from sim.reliability.errors import ReliabilityError
from sim.reliability.spec import ReliabilitySpec
from sim.training.errors import SpecError
from sim.training.pipeline.rules import SLICED_SCHEDULES
from sim.training.spec.experts import ExpertsSpec
from sim.training.spec.job import (
    DelaySpec,
    DenseTraining,
    OsdpSpec,
    ParallelSpec,
    PipelineSpec,
    ShardingSpec,
    TextbookTraining,
    TrainingSpec,
)
from sim.training.spec.latent import LatentAttention
from sim.training.spec.method import LOCAL_SCHEDULE, Method
from sim.training.spec.model import TransformerSpec

MAX_PIPELINE_CALLS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole, checked scenario. ``cluster`` is None exactly for textbook jobs.

    ``algorithms``: of the kinds of collectives that are not left to the library. ``software``: what the framework adds.
    ``reliability``: the long run on
    hardware that fails, None where only a step is asked for. ``document``: where each key was written, for errors that
    only a simulation can find. ``as_read``: the file before ``overrides``; it may be a pipe, which is read once.
    """

    name: str
    seed: int
    source: Path
    job: DenseTraining | TextbookTraining
    cluster: ClusterSpec | None
    algorithms: Mapping[str, str] = field(default_factory=dict)
    software: Software = field(default_factory=Software)
    overrides: tuple[str, ...] = ()
    reliability: ReliabilitySpec | None = None
    document: Document = field(compare=False, repr=False)
    as_read: Document = field(compare=False, repr=False)

    def changed(self, overrides: Sequence[str]) -> "Scenario":
        """Return the scenario with further overrides. Raises ScenarioError as ``load_scenario``."""
        return scenario_of(self.as_read, (*self.overrides, *overrides))


def load_scenario(path: Path | str, overrides: Sequence[str] = ()) -> Scenario:
    """Return the scenario of a file with ``key=value`` overrides put in.

    Raises ScenarioError, with file, line, key, rule and remedy, for everything that is wrong with either.
    """
    return scenario_of(read_document(Path(path)), overrides)


def scenario_of(document: Document, overrides: Sequence[str] = ()) -> Scenario:
    """Return the scenario of a file that was read, with ``key=value`` overrides put in. Raises as ``load_scenario``."""
    scenario = _scenario(apply_overrides(document, overrides), tuple(overrides))
    return replace(scenario, as_read=document)


def scenario_from_mapping(data: Mapping[str, Any], source: Path, where: str) -> Scenario:
    """Return the scenario that a mapping from ``source`` describes.

    Raises ScenarioError, with ``where`` in the place of file and line, for everything that is wrong with it.
    """
    return _scenario(Document(source=source, data=dict(data), origins={(): Origin(option=where)}), ())


def _scenario(document: Document, overrides: tuple[str, ...]) -> Scenario:
    if scenario_class(document.data) is DelayScenario:
        return _delay_scenario(document, check_document(document, DelayScenario), overrides)
    return _dense_scenario(document, check_document(document, DenseScenario), overrides)


@contextmanager
def located(document: Document) -> Iterator[None]:
    """Give a SpecError or ReliabilityError raised inside the origin of the key that it names."""
    try:
        yield
    except (SpecError, ReliabilityError) as error:
        origin = document.origin(error.key.split("."))
        raise ScenarioError(origin, error.key, error.rule, error.remedy) from error


def _delay_scenario(document: Document, checked: DelayScenario, overrides: tuple[str, ...]) -> Scenario:
    model, pipeline = checked.model, checked.parallel.pipeline
    slices = pipeline.token_slices or 1
    num_passes = (slices if isinstance(slices, int) else len(slices)) * checked.training.num_microbatches
    _refuse_many_calls(document, pipeline.degree * pipeline.virtual_stages, num_passes)
    with located(document):
        job = TextbookTraining(
            model=DelaySpec(
                forward_s=model.forward,
                backward_input_s=model.backward_input,
                backward_weight_s=model.backward_weight,
                hop_s=model.hop,
                gradient_sync_s=model.gradient_sync,
                auxiliary_s=model.auxiliary,
            ),
            num_microbatches=checked.training.num_microbatches,
            method=_method(checked),
            local_update=checked.training.local_update,
            pipeline=_pipeline(document, pipeline, pipeline.degree, _method(checked), None),
            overlap_gradient_sync=checked.parallel.data.overlap_gradient_sync,
            deferred_sync=_unless_auto(checked.parallel.data.deferred_sync),
            seed=checked.seed,
        )
    return Scenario(
        name=checked.name,
        seed=checked.seed,
        source=document.source,
        job=job,
        cluster=None,
        overrides=overrides,
        document=document,
        as_read=document,
    )


def _dense_scenario(document: Document, checked: DenseScenario, overrides: tuple[str, ...]) -> Scenario:
    cluster = cluster_spec(document, checked)
    algorithms = forced_algorithms(document, checked, cluster)
    document, model = _model(document, checked)
    parallel = _parallel(document, checked, cluster, model.sequence_length)
    with located(document):
        training = TrainingSpec(**checked.training.model_dump() | {"method": _method(checked)})
    num_microbatches = training.global_batch_size // (training.microbatch_size * parallel.data_degree)
    num_passes = max(1, len(parallel.pipeline.token_slices)) * num_microbatches
    _refuse_many_calls(document, parallel.pipeline.num_virtual_stages, num_passes)
    software = software_of(checked.software)
    with located(document):
        job = DenseTraining(model=model, training=training, parallel=parallel, seed=checked.seed)
        reliability = _reliability(checked, cluster)
    _refuse_unlike_hosts(document, parallel, cluster)
    _refuse_unknown_rate(document, training, cluster)
    return Scenario(
        name=checked.name,
        seed=checked.seed,
        source=document.source,
        job=job,
        cluster=cluster,
        algorithms=algorithms,
        software=software,
        overrides=overrides,
        reliability=reliability,
        document=document,
        as_read=document,
    )


def _refuse_unknown_rate(document: Document, training: TrainingSpec, cluster: ClusterSpec) -> None:
    """Raise ScenarioError where a device has no arithmetic rate for what products multiply."""
    for device in cluster.device_types:
        if training.types.product not in device.peak_flop_per_s:
            key, rule = "training.precision", f"{device.name} does not multiply in {training.types.product}"
            remedy = "write precision: bf16, or take nodes whose devices do, as hgx-h100"
            raise ScenarioError(document.origin(key.split(".")), key, rule, remedy)


def _refuse_unlike_hosts(document: Document, parallel: ParallelSpec, cluster: ClusterSpec) -> None:
    """Raise ScenarioError where hosts are to work that are not all of one type."""
    if parallel.sharding.offload is not None and cluster.node_types:
        key, names = "parallel.data.offload", " and ".join(dict.fromkeys(name for name, _ in cluster.node_types))
        rule = f"it is not built for hosts of several types, and these are {names}"
        raise ScenarioError(document.origin(key.split(".")), key, rule, "leave it out, or use nodes of one type")


def _reliability(checked: DenseScenario, cluster: ClusterSpec) -> ReliabilitySpec | None:
    """Return the long run that a scenario asks for, if any."""
    if checked.reliability is None:
        return None
    return reliability_spec(
        checked.reliability, num_devices=cluster.world_size, num_nics=cluster.num_nics, num_nodes=cluster.num_nodes
    )


def _model(document: Document, checked: DenseScenario) -> tuple[Document, TransformerSpec]:
    """Return the model, and the document with a preset's or configuration's keys written out in it."""
    section = checked.model
    if isinstance(section, PresetModel | HuggingFaceModel):
        name = "preset" if isinstance(section, PresetModel) else "huggingface"
        base = _preset(document, section) if isinstance(section, PresetModel) else _from_config(document, section)
        document = _write_out(document, base, name)
        section = check_document(document, DenseScenario).model
        if isinstance(section, PresetModel | HuggingFaceModel):
            message = f"a preset may not name another one: {base}"
            raise TypeError(message)
    return document, _transformer(document, section)


def _preset(document: Document, section: PresetModel) -> dict[str, Any]:
    presets = load_presets()
    if section.preset not in presets:
        rule = f"there is no model preset {section.preset!r}"
        remedy = suggestion(section.preset, presets)
        raise ScenarioError(document.origin(("model", "preset")), "model.preset", rule, remedy)
    return presets[section.preset].keys


def _from_config(document: Document, section: HuggingFaceModel) -> dict[str, Any]:
    return read_model(document.source.parent / section.huggingface)


def _write_out(document: Document, base: dict[str, Any], name: str) -> Document:
    """Return the document with ``base`` under the model's own keys, ``base`` having the origin of key ``name``.

    A section of both is merged key by key.
    """
    own = {key: value for key, value in document.data["model"].items() if key != name}
    origin = document.origin(("model", name))
    inherited: dict[KeyPath, Origin] = {("model", key): origin for key in base}
    for key, section in base.items():
        if isinstance(section, dict) and isinstance(own.get(key), dict):
            inherited |= {("model", key, inner): origin for inner in section}
            own[key] = section | own[key]
    data = {**document.data, "model": base | own}
    return Document(source=document.source, data=data, origins=inherited | document.origins)


def _transformer(document: Document, section: GptModel | LlamaModel) -> TransformerSpec:
    keys: dict[str, Any] = section.model_dump()
    keys["num_kv_heads"] = section.num_kv_heads or section.num_heads
    keys["ffn_hidden_size"] = section.ffn_hidden_size or 4 * section.hidden_size
    with located(document):
        if keys.get("latent_attention") is not None:
            keys["latent_attention"] = LatentAttention(**keys["latent_attention"])
        if section.experts is not None:
            keys["experts"] = ExpertsSpec(**section.experts.model_dump())
        return TransformerSpec(**keys)


def _parallel(document: Document, checked: DenseScenario, cluster: ClusterSpec, sequence_length: int) -> ParallelSpec:
    section = checked.parallel
    degrees = resolve_degrees(document, section, cluster.num_nodes, cluster.devices_per_node)
    shares = section.tensor.sequence_parallel or section.pipeline.scatter_gather
    multiple = degrees["tensor"] if shares else 1
    with located(document):
        return ParallelSpec(
            tensor_degree=degrees["tensor"],
            sequence_parallel=section.tensor.sequence_parallel,
            overlap_tensor_backward=section.tensor.overlap_backward,
            collective_matmul=section.tensor.collective_matmul,
            context_degree=degrees["context"],
            context_method=section.context.method,
            pipeline=_pipeline(
                document, section.pipeline, degrees["pipeline"], _method(checked), (sequence_length, multiple)
            ),
            data_degree=degrees["data"],
            expert_degree=section.expert.degree,
            zero_stage=section.data.zero_stage,
            sharding=ShardingSpec(**section.data.model_dump(include=set(ShardingSpec.__dataclass_fields__))),
            osdp=None if section.data.osdp is None else _osdp(section.data.osdp),
            overlap_gradient_sync=section.data.overlap_gradient_sync,
            overlap_parameter_gather=section.data.overlap_parameter_gather,
            deferred_sync=_unless_auto(section.data.deferred_sync),
            bucket_bytes=round(section.data.bucket or 0),
            axis_order=section.axis_order,
        )


def _osdp(section: OsdpSection) -> OsdpSpec:
    """Return what sharding operator by operator may do; which operators, is chosen later."""
    limit = None if section.memory_limit is None else round(section.memory_limit)
    return OsdpSpec(memory_limit_bytes=limit, splits=section.splits, gap=section.gap)


def _method(checked: DenseScenario | DelayScenario) -> Method:
    """Return the method that is written, or that the schedule belongs to."""
    if "method" not in checked.training.model_fields_set and checked.parallel.pipeline.schedule == LOCAL_SCHEDULE:
        return "local"
    return checked.training.method


def _unless_auto(value: float | Literal["auto"]) -> float | None:
    return None if value == "auto" else value


def _pipeline(
    document: Document,
    section: PipelineSection | DelayPipelineSection,
    degree: int,
    method: Method,
    tokens: tuple[int, int] | None,
) -> PipelineSpec:
    """Return the pipeline, its actions read from their file; what was left out has the specification's defaults.

    ``tokens``: of a sequence, and what slices must be multiples of; None: only the slices' ratios count.
    """
    keys: dict[str, Any] = {key: value for key, value in section.model_dump().items() if value is not None}
    if method == "local" and "schedule" not in section.model_fields_set:
        keys["schedule"] = LOCAL_SCHEDULE
    if "actions" in keys:
        keys["actions"] = read_actions(document.source.parent / keys["actions"])
    stated = keys.pop("token_slices", None)
    if stated == "auto":
        stated = None if section.schedule in SLICED_SCHEDULES else 1  # of which the specification says that it has none
    if stated is not None:
        length, multiple = tokens or (stated, 1)
        keys["token_slices"] = stated_slices(stated, length, multiple)
    return PipelineSpec(**keys | {"degree": degree})


def _refuse_many_calls(document: Document, num_stages: int, num_microbatches: int) -> None:
    """Raise ScenarioError for pipelines that no computer could hold."""
    key = "num_microbatches" if document.data["model"].get("family") == "delay" else "global_batch_size"
    origin = document.origin(("training", key))
    if num_microbatches > MAX_MICROBATCHES:
        rule = f"{num_microbatches:,} micro-batches per replica are more than {MAX_MICROBATCHES:,}"
        raise ScenarioError(origin, f"training.{key}", rule, "write a smaller number")
    if num_stages * num_microbatches > MAX_PIPELINE_CALLS:
        rule = (
            f"{num_microbatches:,} micro-batches x {num_stages:,} virtual stages are more than "
            f"{MAX_PIPELINE_CALLS:,} passes"
        )
        most = MAX_PIPELINE_CALLS // num_stages
        remedy = f"write a smaller number, for at most {most:,} micro-batches, or use fewer stages"
        raise ScenarioError(origin, f"training.{key}", rule, remedy)
