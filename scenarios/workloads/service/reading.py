"""From the file of a service to its scenario."""

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from costmodels.profile import load_profile
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.machine import ClusterSpec, cluster_spec
from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.located import located
from scenarios.reading.documents.named_file import named_file
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.schema.model import Model
from scenarios.reading.sections.section import written_keys
from scenarios.workloads.service.decoding import TIMED_DRAFTS, read_decoding
from scenarios.workloads.service.schema import RequestsSection, ServiceScenarioFile, ServiceSection, SloSection
from scenarios.workloads.steps.transformer import read_transformer
from scenarios.workloads.workload import Scenario, Workload
from sim.serving.batching import Batching
from sim.serving.kv_links import KvLinks
from sim.serving.memory import num_blocks
from sim.serving.prices.cost import KernelCost, kernel_cost
from sim.serving.prices.layout import ReplicaLayout
from sim.serving.prices.model import ServedExperts, ServedLatent, ServedModel
from sim.serving.prices.software import FRAMEWORKS, ServingSoftware
from sim.serving.requests import Requests, drawn_lengths, gamma_arrivals_s
from sim.serving.service import Failure, ServiceSpec
from sim.training.spec.models.model import TransformerSpec
from traces.errors import TraceError
from traces.requests import MOONCAKE_BLOCK_TOKENS, MOST_TOKENS, read_requests

_DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
_DEFAULT_REQUESTS = 1000


class ServiceScenario(Scenario, frozen=True, kw_only=True, eq=False):
    """A service, its requests, and the times of its iterations."""

    spec: ServiceSpec
    requests: Requests
    cost: KernelCost
    slo: SloSection


def read_service(document: Document, overrides: tuple[str, ...], kind: Workload[Any]) -> ServiceScenario:
    """Return the scenario of a document. Raises ScenarioError for whatever is wrong with it."""
    checked = check_document(document, ServiceScenarioFile)
    cluster, section = cluster_spec(document, checked.cluster), checked.service
    document, model = read_transformer(document, checked.model, checked.seed, _model_of)
    requests = _requests(document, checked.requests, checked.seed)
    _check_attention(document, model, requests)
    cost = _cost(document, section, cluster, _served_model(model))
    if requests.prefixes and requests.prefix_tokens % section.block_tokens:
        rule = f"blocks of {section.block_tokens} tokens do not divide the trace's pieces of {requests.prefix_tokens}"
        raise _error(document, "service.block_tokens", rule, "write a power of 2 up to 512")
    num_replicas = _replicas(document, section, cluster, cost)
    if section.pipeline_degree > 1 and checked.decoding.method in TIMED_DRAFTS:
        rule = f"drafts of {checked.decoding.method} take time, and with stages that is not built"
        raise _error(document, "decoding.method", rule, "leave pipeline_degree out, or decode without such drafts")
    with located(document):
        spec = ServiceSpec(
            num_replicas=num_replicas,
            prompt_replicas=section.prompt_replicas or 0,
            links=KvLinks(cost=cost, devices_per_node=cluster.devices_per_node) if section.prompt_replicas else None,
            num_blocks=num_blocks(
                cost,
                device_bytes=cluster.node_spec.device.memory_bytes,
                memory_fraction=section.memory_fraction,
                activation_bytes=section.activation_memory,
                block_tokens=section.block_tokens,
            ),
            num_groups=cost.layout.expert_degree,
            block_tokens=section.block_tokens,
            batching=Batching(name=section.batching, max_rows=section.max_sequences, max_tokens=section.max_tokens),
            router=section.router,
            decoding=read_decoding(document, checked.decoding, cost),
            concurrency=checked.requests.concurrency,
            patience_s=section.patience,
            request_s=cost.software.request_s,
            failures=tuple(
                Failure(replica=failure.replica, at_s=failure.at, lasts_s=failure.lasts) for failure in section.failures
            ),
            seed=checked.seed,
        )
    return ServiceScenario(
        name=checked.name,
        seed=checked.seed,
        source=document.source,
        overrides=overrides,
        workload=kind,
        document=document,
        as_read=document,
        spec=spec,
        requests=requests,
        cost=cost,
        slo=section.slo,
    )


def _replicas(document: Document, section: ServiceSection, cluster: ClusterSpec, cost: KernelCost) -> int:
    """Return the number of replicas. Raises ScenarioError where the cluster is too small, or a failure has none."""
    size = cost.layout.num_devices
    room = cluster.world_size // size
    count = section.replicas or room
    if not 1 <= count <= room:
        rule = f"{max(1, count)} x {size} devices are more than the cluster's {cluster.world_size}"
        key = "service.tensor_degree" if section.replicas is None else "service.replicas"
        raise _error(document, key, rule, "write fewer, or more nodes")
    if section.slo.share is not None:
        _check_sought(document, section)
    if section.prompt_replicas is not None and section.prompt_replicas >= count:
        rule = f"{section.prompt_replicas} of {count} replicas for prompts leave none that decodes"
        raise _error(document, "service.prompt_replicas", rule, f"write at most {count - 1}, or more replicas")
    worst = max((failure.replica for failure in section.failures), default=0)
    if worst >= count:
        rule = f"there is no replica {worst}: the service has {count}, counted from 0"
        raise _error(document, "service.failures", rule, f"write at most {count - 1}")
    return count


def _check_sought(document: Document, section: ServiceSection) -> None:
    """Raise ScenarioError where a number of replicas cannot be sought."""
    if section.slo.ttft is None and section.slo.tpot is None:
        rule, remedy = "a share of the requests must meet limits, of which there are none", "write ttft, tpot, or both"
        raise _error(document, "service.slo.share", rule, remedy)
    for key in ("replicas", "prompt_replicas", "failures"):
        if getattr(section, key):
            rule = "service.slo.share seeks the number of replicas, which cannot be named"
            raise _error(document, f"service.{key}", rule, "leave one of the two out")


def _cost(document: Document, section: ServiceSection, cluster: ClusterSpec, model: ServedModel) -> KernelCost:
    if cluster.node_types or cluster.wiring is not None:
        rule = "a service is simulated on nodes of one type below one switch"
        raise _error(document, "cluster", rule, "write node and num_nodes alone")
    if cluster.jitter:
        raise _error(document, "cluster.jitter", "devices of a service take equal times", "leave it out")
    device = cluster.node_spec.device
    dtype, cache_dtype = _DTYPES[section.precision], _DTYPES[section.cache_precision]
    if dtype not in device.peak_flop_per_s:
        rule = f"{device.name} does not multiply in {dtype}"
        raise _error(document, "service.precision", rule, "write precision: bf16, or take nodes whose devices do")
    profile = load_profile(device.profile) if cluster.calibrated is None else cluster.calibrated.profile
    return kernel_cost(
        model=model,
        node=cluster.node_spec,
        profile=profile,
        layout=_layout(document, section, cluster, model),
        weight_dtype=dtype,
        cache_dtype=cache_dtype,
        software=_software(section),
    )


def _layout(document: Document, section: ServiceSection, cluster: ClusterSpec, model: ServedModel) -> ReplicaLayout:
    """Return how a replica lies on devices. Raises ScenarioError where the model or the nodes cannot be divided so."""
    layout = ReplicaLayout(
        tensor_degree=section.tensor_degree,
        pipeline_degree=section.pipeline_degree,
        expert_degree=section.expert_degree,
        devices_per_node=cluster.devices_per_node,
    )
    if model.num_heads % layout.tensor_degree:
        rule = f"{model.num_heads} heads cannot be divided over {layout.tensor_degree} devices"
        raise _error(document, "service.tensor_degree", rule, "write a divisor")
    if layout.pipeline_degree > model.num_layers:
        rule = f"{layout.pipeline_degree} stages are more than the {model.num_layers} layers"
        raise _error(document, "service.pipeline_degree", rule, f"write at most {model.num_layers}")
    if section.expert_messages is not None and layout.expert_degree == 1:
        rule = "there are no groups that send each other tokens"
        raise _error(document, "service.expert_messages", rule, "leave it out, or write expert_degree")
    if layout.expert_degree > 1:
        if model.experts is None:
            rule = "groups share out experts, and the model has none"
            raise _error(document, "service.expert_degree", rule, "leave it out; replicas decode side by side")
        if model.experts.num_experts % layout.expert_degree:
            rule = f"{model.experts.num_experts} experts cannot be shared out by {layout.expert_degree} groups"
            raise _error(document, "service.expert_degree", rule, "write a divisor")
    if problem := layout.problem():
        key = "service.tensor_degree" if layout.expert_degree == 1 else "service.expert_degree"
        raise _error(document, key, problem, "write a divisor of a node's devices, or a multiple")
    return layout


def _software(section: ServiceSection) -> ServingSoftware:
    """Return the constants of the framework that is named, with those in their place that the file states."""
    named = ServingSoftware() if section.framework is None else FRAMEWORKS[section.framework]
    stated = {
        "iteration_s": section.overhead,
        "sequence_s": section.sequence_overhead,
        "request_s": section.request_overhead,
        "all_reduce_s": section.all_reduce_latency,
        "expert_messages": section.expert_messages,
    }
    return replace(named, **{name: value for name, value in stated.items() if value is not None})


def _model_of(document: Document) -> Model:
    return check_document(document, ServiceScenarioFile).model


def _check_attention(document: Document, model: TransformerSpec, requests: Requests) -> None:
    """Raise ScenarioError where a request has more tokens than attention's window, or tokens see later ones."""
    if not model.causal:
        raise _error(document, "model.causal", "only causal models continue a text", "leave it out")
    window = model.sliding_window
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    if window is not None and longest > window.size:
        rule = f"a request comes to {longest:,} tokens, and services are built without windows, here of {window.size:,}"
        raise _error(document, "model.sliding_window", rule, "write shorter requests, or take another model")


def _served_model(model: TransformerSpec) -> ServedModel:
    """Return the model as a service sees it."""
    experts, latent = model.experts, model.latent_attention
    return ServedModel(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_size=model.own_head_size or model.hidden_size // model.num_heads,
        ffn_hidden_size=model.ffn_hidden_size,
        vocab_size=model.vocab_size,
        gated=model.family == "llama",
        tied_embeddings=model.tied_embeddings,
        experts=None if experts is None else ServedExperts(**_alike(experts, ServedExperts)),
        latent=None if latent is None else ServedLatent(**_alike(latent, ServedLatent)),
    )


def _alike(spec: Struct, served: type[Struct]) -> dict[str, Any]:
    """Return the fields of a part of the model that services know, too."""
    return {key: getattr(spec, key) for key in served.__struct_fields__}


def _requests(document: Document, section: RequestsSection, seed: int) -> Requests:
    """Return the requests, read or drawn."""
    if section.concurrency is not None and section.rate is not None:
        raise _error(document, "requests.concurrency", "users who wait have no rate", "leave out rate or concurrency")
    if section.concurrency is not None and "burstiness" in written_keys(section):
        rule = "users who wait send a request when the one before has ended"
        raise _error(document, "requests.burstiness", rule, "leave out burstiness or concurrency")
    if section.trace is not None:
        path = named_file(document, ("requests", "trace"), section.trace, "name a trace of requests")
        try:
            recorded = read_requests(path)
        except TraceError as error:
            raise _error(document, "requests.trace", error.problem, error.remedy) from error
        found = Requests(
            arrival_s=np.array(recorded.arrival_s),
            prompt_tokens=np.array(recorded.prompt_tokens),
            output_tokens=np.array(recorded.output_tokens),
            prefixes=recorded.prefixes,
            prefix_tokens=MOONCAKE_BLOCK_TOKENS,
        )
        found = found.first(section.num_requests or len(found))
        return found if section.rate is None else found.at_rate(section.rate)
    if section.rate is None and section.concurrency is None:
        raise _error(
            document, "requests.rate", "drawn requests need a rate", "write rate: 4.0, concurrency: 8, or name a trace"
        )
    count, generator = section.num_requests or _DEFAULT_REQUESTS, np.random.default_rng((seed, 0x5265717565737473))
    return Requests(
        arrival_s=gamma_arrivals_s(count, section.rate or 1.0, section.burstiness, generator),
        prompt_tokens=drawn_lengths(count, section.prompt_tokens, section.prompt_variation, MOST_TOKENS, generator),
        output_tokens=drawn_lengths(count, section.output_tokens, section.output_variation, MOST_TOKENS, generator),
    )


def _error(document: Document, key: str, rule: str, remedy: str) -> ScenarioError:
    return ScenarioError(document.origin(tuple(key.split("."))), key, rule, remedy)
