"""Small jobs, and ways to run them, for the tests of the simulated world."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.hardware import NodeSpec, load_node
from costmodels.profile import Profile, load_profile
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.words.program import Plan
from sim.training.sequence.registry import sequence_method
from sim.training.spec.job import (
    DelaySpec,
    DenseTraining,
    OpenTraining,
    ParallelSpec,
    PipelineSpec,
    TextbookTraining,
    TrainingSpec,
)
from sim.training.spec.models.model import TransformerSpec
from sim.training.steps.builder import build_dense_training
from sim.training.steps.textbook import build_textbook
from sim.training.tensor.registry import tensor_method

OpTimes = dict[tuple[int, int, int], tuple[float, float]]
"""(rank, call, op of its task) -> (start, end) in seconds."""

GPT = {
    "family": "gpt", "num_layers": 4, "hidden_size": 64, "num_heads": 8, "sequence_length": 32, "vocab_size": 128,
    "num_kv_heads": 8, "ffn_hidden_size": 256, "tied_embeddings": True, "attention": "core", "dropout": 0.1,
}  # fmt: skip
LLAMA = GPT | {
    "family": "llama", "num_kv_heads": 4, "ffn_hidden_size": 96, "tied_embeddings": False, "attention": "flash",
    "dropout": 0.0,
}  # fmt: skip

_TRAINING_KEYS = {
    "precision", "recompute", "recompute_num_layers", "recompute_method", "recompute_layers",
    "checkpoint_early_stop", "gradient_placeholders", "fused_gradient_accumulation",
    "low_precision_gradients",
    "set_gradients_to_none", "whole_embedding_gradient", "prescale_gradients", "check_gradients",
    "method", "local_update",
}  # fmt: skip
_MESH_KEYS = ("mesh", "overlap", "depth_sync", "save_gathered", "tensor_axis_order", "node_block")
_TENSOR_KEYS = {
    "sequence_parallel",
    "overlap_backward",
    "collective_matmul",
    "distribute_saved_activations",
    *_MESH_KEYS,
}
_CONTEXT_KEYS = {"context_degree", "context_method", "context_layout", "context_inner_degree"}
_PIPELINE_KEYS = {
    "schedule",
    "actions",
    "virtual_stages",
    "layers_per_stage",
    "recompute_per_stage",
    "scatter_gather",
    "token_slices",
    "blocking_messages",
    "overlap_exchanges",
    "optimizer_barrier",
}


def dense_job(**keys: Any) -> DenseTraining:
    """Return a decided job; keys as of ``job_parts``."""
    return DenseTraining(**job_parts(**keys))


def open_job(**keys: Any) -> OpenTraining:
    """Return a job that leaves something to prices; keys as of ``job_parts``."""
    return OpenTraining(**job_parts(**keys))


def job_parts(
    *, tp: int = 1, pp: int = 1, dp: int = 1, m: int = 1, b: int = 1, model: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """Return the parts of a job of ``m`` micro-batches of ``b`` sequences; ``keys`` go where they belong."""
    training = {key: keys.pop(key) for key in _TRAINING_KEYS & keys.keys()}
    pipeline = {key: keys.pop(key) for key in _PIPELINE_KEYS & keys.keys()}
    options = {key.removeprefix("tensor_"): keys.pop(key) for key in _TENSOR_KEYS & keys.keys()}
    tensor = tensor_method(keys.pop("tensor_method", "1d"), tp, options)
    pipeline_spec = PipelineSpec(degree=pp, **pipeline)
    shared = {key.removeprefix("context_"): keys.pop(key) for key in _CONTEXT_KEYS & keys.keys()}
    sequence = sequence_method(shared.pop("method", "p2p"), shared.pop("degree", 1), shared)
    return {
        "model": TransformerSpec(**(model or GPT)),
        "training": TrainingSpec(global_batch_size=m * b * dp, microbatch_size=b, **training),
        "parallel": ParallelSpec(tensor=tensor, sequence=sequence, data_degree=dp, pipeline=pipeline_spec, **keys),
    }


def dense_plan(**keys: Any) -> Plan:
    """Return the plan of a dense job."""
    return build_dense_training(dense_job(**keys), "test")


def pricing_on(
    node: str | NodeSpec, num_ranks: int, *, devices_per_node: int = 0, profile: Profile | None = None
) -> ClusterPricing:
    """Return prices on as many nodes as ``num_ranks`` need."""
    spec = load_node(node) if isinstance(node, str) else node
    per_node = devices_per_node or spec.devices_per_node
    cluster = Cluster(spec, -(-num_ranks // per_node), per_node)
    return ClusterPricing(cluster, profile or load_profile(spec.device.generation))


_DATA_KEYS = {"overlap_gradient_sync", "deferred_sync"}


def textbook_job(
    schedule: str,
    p: int,
    m: int,
    v: int = 1,
    *,
    forward_s: float = 1,
    input_s: float = 1,
    weight_s: float = 1,
    hop_s: float = 0,
    sync_s: float = 0,
    **keys: Any,
) -> TextbookTraining:
    """Return a textbook job; "interleaved" stands for interleaved_1f1b, other ``keys`` go where they belong."""
    name = "interleaved_1f1b" if schedule == "interleaved" else schedule
    data = {key: keys.pop(key) for key in _DATA_KEYS & keys.keys()}
    return TextbookTraining(
        model=DelaySpec(
            forward_s=forward_s, backward_input_s=input_s, backward_weight_s=weight_s, hop_s=hop_s,
            gradient_sync_s=sync_s,
        ),
        num_microbatches=m,
        pipeline=PipelineSpec(degree=p, schedule=name, virtual_stages=v, **keys),
        **data,
    )  # fmt: skip


def textbook_plan(schedule: str, p: int, m: int, v: int = 1, **keys: Any) -> Plan:
    """Return a textbook plan; ``keys`` as of ``textbook_job``."""
    return build_textbook(textbook_job(schedule, p, m, v, **keys), "textbook")


def run_textbook(
    schedule: str, p: int, m: int, v: int = 1, *, hop_s: float = 0, coalesce: bool = True, **keys: Any
) -> SimulatedRun:
    """Return the run of a textbook plan."""
    plan = textbook_plan(schedule, p, m, v, hop_s=hop_s, **keys)
    return simulate(plan, TextbookPricing(hop_s), coalesce=coalesce)


def op_times(run: SimulatedRun) -> OpTimes:
    """Return when every op of every simulated rank began and ended."""
    found: OpTimes = {}
    for rank in run.programs:
        for times in run.task_times(rank):
            rows = zip(times.calls.tolist(), times.starts_s.tolist(), times.ends_s.tolist(), strict=True)
            for call, starts_s, ends_s in rows:
                found |= {(rank, call, j): both for j, both in enumerate(zip(starts_s, ends_s, strict=True))}
    return found


def as_array(times: OpTimes, keys: list[tuple[int, int, int]]) -> NDArray[np.float64]:
    """Return the times of the given ops as an array, ops x (start, end)."""
    return np.array([times[key] for key in keys])
