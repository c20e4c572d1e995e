"""From the file of an inference to its scenario."""

from typing import Any

from msgspec.structs import replace

from costmodels.software import Software
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.machine import ClusterSpec, cluster_spec
from scenarios.reading.clusters.software import software_of
from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.located import located
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.schema.model import Model
from scenarios.reading.sections.section import written_keys
from scenarios.workloads.inference.schema import InferenceScenarioFile
from scenarios.workloads.steps.pricing import cluster_pricing
from scenarios.workloads.steps.transformer import read_transformer
from scenarios.workloads.workload import Scenario, Workload
from sim.engine.prices.pricing import ClusterPricing
from sim.inference.builder import build_inference
from sim.inference.spec import InferenceJob, inference_model
from sim.plan.words.program import Plan
from sim.training.spec.job import ParallelSpec, PipelineSpec
from sim.training.tensor.one_dimensional import OneDimensional


class InferenceScenario(Scenario, frozen=True, kw_only=True, eq=False):
    """An inference and the machine that it runs on."""

    job: InferenceJob
    cluster: ClusterSpec
    software: Software

    def build(self) -> Plan:
        """Return the plan."""
        with located(self.document):
            return build_inference(self.job, self.name)

    def pricing(self) -> ClusterPricing:
        """Return the prices of the cluster, as services have them: at the clock of bursts, not of a long training."""
        return cluster_pricing(self.cluster, {}, self.seed, self.software, sustained=False)

    def in_double_precision(self) -> "InferenceScenario":
        """Return the scenario with 64 bits for all numbers that have more than eight."""
        precision = "fp8" if self.job.types.casts else "fp64"
        return replace(self, job=replace(self.job, precision=precision, wide=True))


def read_inference(document: Document, overrides: tuple[str, ...], kind: Workload[Any]) -> InferenceScenario:
    """Return the scenario of a document. Raises ScenarioError for whatever is wrong with it."""
    checked = check_document(document, InferenceScenarioFile)
    cluster = cluster_spec(document, checked.cluster)
    document, model = read_transformer(document, checked.model, checked.seed, _model_of)
    parallel, section = _parallel(document, checked, cluster), checked.inference
    with located(document):
        job = InferenceJob(
            model=inference_model(model),
            parallel=parallel,
            prompt_tokens=_prompts(document, checked),
            output_tokens=section.output_tokens,
            tokens_per_step=section.tokens_per_step,
            num_microbatches=section.microbatches,
            precision=section.precision,
            cache_precision=section.cache_precision,
            block_tokens=section.block_tokens,
            seed=checked.seed,
        )
    return InferenceScenario(
        name=checked.name,
        seed=checked.seed,
        source=document.source,
        overrides=overrides,
        workload=kind,
        document=document,
        as_read=document,
        job=job,
        cluster=cluster,
        software=software_of(checked.software),
    )


def _model_of(document: Document) -> Model:
    return check_document(document, InferenceScenarioFile).model


def _prompts(document: Document, checked: InferenceScenarioFile) -> tuple[int, ...]:
    """Return the tokens of each prompt of a micro-batch. Raises ScenarioError where they are stated twice."""
    section = checked.inference
    if not section.prompts:
        return (section.prompt_tokens,) * section.sequences
    for key in ("sequences", "prompt_tokens"):
        if key in written_keys(section):
            rule = "prompts states the tokens of every sequence"
            raise _error(document, f"inference.{key}", rule, "leave one of the two out")
    return section.prompts


def _parallel(document: Document, checked: InferenceScenarioFile, cluster: ClusterSpec) -> ParallelSpec:
    """Return how the work lies over all ranks. Raises ScenarioError where replicas do not fill the cluster."""
    tensor, pipeline, expert = (getattr(checked.parallel, axis).degree for axis in ("tensor", "pipeline", "expert"))
    size, world_size = tensor * pipeline, cluster.world_size
    if world_size % size:
        rule = f"replicas of tensor {tensor} x pipeline {pipeline} = {size} ranks do not fill {world_size} devices"
        remedy = f"write degrees whose product divides {world_size}, or another number of nodes"
        raise _error(document, "parallel.tensor.degree" if tensor > 1 else "parallel.pipeline.degree", rule, remedy)
    with located(document):
        return ParallelSpec(
            tensor=OneDimensional(degree=tensor),
            pipeline=PipelineSpec(degree=pipeline),
            data_degree=world_size // size,
            expert_degree=expert,
        )


def _error(document: Document, key: str, rule: str, remedy: str) -> ScenarioError:
    return ScenarioError(document.origin(tuple(key.split("."))), key, rule, remedy)
