"""Tiny trainings that run for real in a blink."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from scenarios.choices.decide import decided
from sim.cluster.cluster import Cluster
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.training.data.operators import choices_of_layers
from sim.training.pipeline.actions import parse_orders
from sim.training.pipeline.spec import Recompute
from sim.training.sequence.registry import sequence_method
from sim.training.spec.job import (
    DenseTraining,
    OpenTraining,
    OsdpSpec,
    ParallelSpec,
    PipelineSpec,
    Precision,
    ShardingSpec,
    TrainingSpec,
    stated_training,
)
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.parallelism.sharding import Choice
from sim.training.tensor.one_dimensional import OneDimensional
from tests.sim.replicated import Replicated

GPT: Mapping[str, Any] = {
    "family": "gpt", "num_layers": 4, "hidden_size": 16, "num_heads": 4, "num_kv_heads": 4, "sequence_length": 8,
    "vocab_size": 32, "ffn_hidden_size": 32, "tied_embeddings": True, "attention": "core", "dropout": 0.1,
}  # fmt: skip
LLAMA: Mapping[str, Any] = {
    **GPT, "family": "llama", "num_kv_heads": 2, "tied_embeddings": False, "attention": "flash", "dropout": 0.0,
}  # fmt: skip

_TENSOR_KEYS = {
    "tensor_degree": "degree", "sequence_parallel": "sequence_parallel", "collective_matmul": "collective_matmul",
    "overlap_tensor_backward": "overlap_backward", "distribute_saved_activations": "distribute_saved_activations",
}  # fmt: skip


_CONTEXT_KEYS = {"context_degree", "context_method", "context_layout", "context_inner_degree"}


def training(
    *,
    model: Mapping[str, Any] = GPT,
    pipeline: Mapping[str, Any] | None = None,
    precision: Precision = "fp64",
    recompute: Recompute = "none",
    batch: tuple[int, int] = (4, 1),
    numbers: Mapping[str, Any] | None = None,
    **parallel: Any,
) -> Any:
    """Return a training, open where it leaves something to prices.

    ``batch``: global and micro-batch size; ``numbers``: more of TrainingSpec; ``parallel``: of ParallelSpec, and
    of 1D tensor parallelism; ``tensor``: another method.
    """
    options = {key: parallel.pop(long) for long, key in _TENSOR_KEYS.items() if long in parallel}
    tensor = parallel.pop("tensor", None) or OneDimensional(**options)
    shared = {key.removeprefix("context_"): parallel.pop(key) for key in _CONTEXT_KEYS & parallel.keys()}
    sequence = sequence_method(shared.pop("method", "p2p"), shared.pop("degree", 1), shared)
    return stated_training(
        model=TransformerSpec(**model),
        training=TrainingSpec(
            global_batch_size=batch[0],
            microbatch_size=batch[1],
            precision=precision,
            recompute=recompute,
            **(numbers or {}),
        ),
        parallel=ParallelSpec(tensor=tensor, sequence=sequence, pipeline=PipelineSpec(**(pipeline or {})), **parallel),
        seed=3,
    )


CUSTOM = tuple(
    tuple(order)
    for order in parse_orders("1F0,2F0,1F1,2F1,2I1,1I1,2W1,2B0,1B0,1W1\n0F0,0F1,3F1,3I1,3F0,3B0,0B1,3W1,0I0,0W0\n")
)
"""A schedule that interleaves whole and split backwards, and receives in another order than it needs; made up."""

STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "tp4": {"tensor_degree": 4, "batch": (2, 1)},
    "tp2 sp x dp2": {"tensor_degree": 2, "sequence_parallel": True, "data_degree": 2},
    "pp4 1f1b": {"pipeline": {"degree": 4}, "batch": (6, 1)},
    "pp2 v2 interleaved x tp2": {
        "tensor_degree": 2,
        "pipeline": {"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    },
    "dp2 zero1 x pp2": {"data_degree": 2, "zero_stage": 1, "pipeline": {"degree": 2, "schedule": "gpipe"}},
}
RECOMPUTES = ("none", "selective", "full")

ONCE = ShardingSpec(gradient_sync="last_microbatch")
OFFLOAD = ShardingSpec(offload="optimizer")
SHARDED: Mapping[str, Mapping[str, Any]] = {
    "zero2 dp2 x pp2": {"data_degree": 2, "zero_stage": 2, "pipeline": {"degree": 2}},
    "zero3 dp4": {"data_degree": 4, "zero_stage": 3, "batch": (8, 1)},
    "zero3 dp2 x tp2 sp": {"data_degree": 2, "zero_stage": 3, "tensor_degree": 2, "sequence_parallel": True},
    "zero3 dp4 in groups of 2": {
        "data_degree": 4, "zero_stage": 3, "batch": (8, 1), "sharding": ShardingSpec(shard_degree=2),
    },
}  # fmt: skip
"""Gradients and parameters sharded; what an option changes is among the others."""


def sharded_operators(**slices: tuple[int, int]) -> OsdpSpec:
    """Return a choice of operators: into how many slices each is split, how many are sharded; "__" stands for "."."""
    return OsdpSpec(choices=tuple((name.replace("__", "."), Choice(*slices[name])) for name in slices))


OPERATORS = {
    "layer0__qkv": (4, 3), "layer0__fc1": (2, 2), "layer1__projection": (2, 1), "layer1__fc2": (1, 1),
    "layer2__fc2": (4, 4), "layer3__qkv": (2, 2), "embedding__word": (1, 1),
}  # fmt: skip
"""Some operators whole, some in slices of which all or some are sharded; the others are replicated."""
SGD: Mapping[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1}
AIAO: Mapping[str, Any] = {"degree": 2, "schedule": "aiao", "virtual_stages": 2}

PASSES = {"whole_embedding_gradient": True, "prescale_gradients": True, "check_gradients": True}
"""What Megatron-LM does to gradients beside adding them up."""

OTHERS: Mapping[str, Mapping[str, Any]] = {
    "one rank": {"batch": (4, 2)},
    "uneven layers, tied, pp2 x dp2": {
        "model": {**GPT, "num_layers": 5}, "pipeline": {"degree": 2}, "data_degree": 2,
    },
    "layers on two ranks each, pp2": {"tensor": Replicated(degree=2), "pipeline": {"degree": 2}},
    "llama, pp4": {"model": LLAMA, "pipeline": {"degree": 4}},
    "ends without layers, tied, pp2 v2 interleaved x tp2 sp": {
        "model": {**GPT, "num_layers": 2}, "tensor_degree": 2, "sequence_parallel": True,
        "pipeline": {"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    },
    "llama, tp2 sp x dp2 zero1": {
        "model": LLAMA, "tensor_degree": 2, "sequence_parallel": True, "data_degree": 2, "zero_stage": 1,
        "bucket_bytes": 4000, "numbers": {"gradient_placeholders": True},
    },
    "scatter-gather pipeline x tp2": {
        "tensor_degree": 2, "pipeline": {"degree": 2, "scatter_gather": True}, "overlap_gradient_sync": False,
    },
    "unfused, weight gradients first, tp2 x dp2": {
        "tensor_degree": 2, "data_degree": 2, "overlap_tensor_backward": False, "overlap_gradient_sync": False,
        "numbers": {"fused_gradient_accumulation": False, **PASSES},
    },
    "breadth-first, pp2 v2 x tp2": {
        "tensor_degree": 2,
        "pipeline": {
            "degree": 2, "schedule": "breadth_first", "virtual_stages": 2,
            "recompute_per_stage": ("full", "none", "selective", "full"),
        },
    },
    "groups of 3, pp2 v2 x dp2": {
        "data_degree": 2, "batch": (12, 1),
        "pipeline": {
            "degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "microbatch_group_size": 3,
        },
    },
    "cp4 zero1": {"model": {**LLAMA, "sequence_length": 16}, "context_degree": 4, "zero_stage": 1, "batch": (2, 2)},
    "cp4 zero1, gathered": {
        "model": {**LLAMA, "sequence_length": 16}, "context_degree": 4, "zero_stage": 1, "batch": (2, 2),
        "context_method": "all_gather",
    },
    "cp2 x tp2 sp": {
        "model": LLAMA, "context_degree": 2, "tensor_degree": 2, "sequence_parallel": True, "recompute": "full",
    },
    "cp2 x tp2 sp, gathered": {
        "model": LLAMA, "context_degree": 2, "tensor_degree": 2, "sequence_parallel": True, "recompute": "selective",
        "context_method": "all_gather",
    },
    "cp2 x pp2 zb_h1": {
        "model": LLAMA, "context_degree": 2, "pipeline": {"degree": 2, "schedule": "zb_h1"}, "batch": (4, 1),
    },
    "cp2 x pp2, dropout, recompute": {
        "model": {**GPT, "attention": "flash"}, "context_degree": 2, "recompute": "selective",
        "pipeline": {"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    },
    "cp2 x dp2 zero1, cp outermost": {
        "model": LLAMA, "context_degree": 2, "data_degree": 2, "zero_stage": 1, "bucket_bytes": 4000,
        "context_method": "all_gather", "axis_order": ("cp", "pp", "tp", "dp"),
    },
    "2 of 3 layers recomputed, pp2 v2 interleaved x tp2": {
        "model": {**GPT, "num_layers": 9}, "tensor_degree": 2, "recompute": "full",
        "numbers": {"recompute_num_layers": 2},
        "pipeline": {
            "degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "layers_per_stage": (3, 1, 3, 2),
        },
    },
    "1 layer recomputed, zb_h1, pp2 x cp2 zero1": {
        "model": LLAMA, "context_degree": 2, "zero_stage": 1, "recompute": "full",
        "numbers": {"recompute_num_layers": 1, "checkpoint_early_stop": True},
        "pipeline": {"degree": 2, "schedule": "zb_h1"},
    },
    "2 layers recomputed at a time, zero3 dp2 x tp2 sp": {
        "model": {**GPT, "num_layers": 3}, "data_degree": 2, "zero_stage": 3, "tensor_degree": 2,
        "sequence_parallel": True, "recompute": "full",
        "numbers": {"recompute_num_layers": 2, "recompute_method": "uniform"},
    },
    "cp4 zero3": {"model": {**LLAMA, "sequence_length": 16}, "context_degree": 4, "zero_stage": 3, "batch": (4, 2)},
    "cp2 x dp2 zero3, gathered, recompute full": {
        "model": LLAMA, "context_degree": 2, "data_degree": 2, "zero_stage": 3, "batch": (8, 1), "recompute": "full",
        "context_method": "all_gather", "sharding": ShardingSpec(prefetch=2),
    },
    "cp2 x dp2 zero3 in groups of cp2, cp outermost": {
        "model": LLAMA, "context_degree": 2, "data_degree": 2, "zero_stage": 3, "batch": (8, 1),
        "sharding": ShardingSpec(shard_degree=1), "axis_order": ("cp", "pp", "tp", "dp"),
    },
    "cp2 x pp2 zero3, tied, kept": {
        "model": {**GPT, "attention": "flash"}, "context_degree": 2, "zero_stage": 3, "pipeline": {"degree": 2},
        "sharding": ShardingSpec(reshard_after_forward=False, gradient_sync="last_microbatch"),
    },
    "cp2 x tp2 sp zero2, buckets": {
        "model": LLAMA, "context_degree": 2, "tensor_degree": 2, "sequence_parallel": True, "zero_stage": 2,
        "bucket_bytes": 4000,
    },
    "cp2 x dp2, offload": {
        "model": LLAMA, "context_degree": 2, "data_degree": 2, "zero_stage": 2, "sharding": OFFLOAD,
    },
    "zb_h1, pp4": {"pipeline": {"degree": 4, "schedule": "zb_h1"}, "batch": (6, 1)},
    "zb_h2, pp2 x tp2 sp": {
        "tensor_degree": 2, "sequence_parallel": True, "pipeline": {"degree": 2, "schedule": "zb_h2"},
        "recompute": "selective",
    },
    "zb_v, pp4": {
        "model": {**LLAMA, "num_layers": 8}, "batch": (8, 1),
        "pipeline": {"degree": 4, "schedule": "zb_v", "virtual_stages": 2},
    },
    "zb_v, scatter-gather, pp2 x tp2": {
        "tensor_degree": 2, "recompute": "full", "numbers": {"checkpoint_early_stop": True},
        "pipeline": {"degree": 2, "schedule": "zb_v", "virtual_stages": 2, "scatter_gather": True},
        "distribute_saved_activations": True,
    },
    "dualpipe_v, pp2 x dp2 zero1": {
        "data_degree": 2, "zero_stage": 1, "batch": (10, 1),
        "pipeline": {"degree": 2, "schedule": "dualpipe_v", "virtual_stages": 2},
    },
    "chimera, pp4": {"pipeline": {"degree": 4, "schedule": "chimera"}, "batch": (8, 1)},
    "chimera, pp2 x tp2 sp": {
        "tensor_degree": 2, "sequence_parallel": True, "pipeline": {"degree": 2, "schedule": "chimera"},
        "bucket_bytes": 4000,
    },
    "dualpipe, pp4": {
        "model": LLAMA, "pipeline": {"degree": 4, "schedule": "dualpipe"}, "batch": (8, 1), "recompute": "full",
    },
    "dualpipe, pp2 x dp2 zero1, unfused": {
        "data_degree": 2, "zero_stage": 1, "batch": (12, 1), "pipeline": {"degree": 2, "schedule": "dualpipe"},
        "numbers": {"fused_gradient_accumulation": False},
    },
    "custom, pp2 v2 x tp2": {
        "tensor_degree": 2, "batch": (2, 1),
        "pipeline": {"degree": 2, "schedule": "custom", "virtual_stages": 2, "actions": CUSTOM},
    },
    "zero2 dp4, llama, buckets": {
        "model": LLAMA, "data_degree": 4, "zero_stage": 2, "batch": (8, 1), "bucket_bytes": 4000,
    },
    "zero2 dp2 x tp2 sp": {
        "data_degree": 2, "zero_stage": 2, "tensor_degree": 2, "sequence_parallel": True, "recompute": "full",
    },
    "zero2 dp2 x pp2, no_sync": {
        "data_degree": 2, "zero_stage": 2, "pipeline": {"degree": 2}, "batch": (8, 1), "sharding": ONCE,
    },
    "zero2 dp2 x pp2 interleaved": {
        "data_degree": 2, "zero_stage": 2, "bucket_bytes": 4000,
        "pipeline": {"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    },
    "zero2 dp4 in groups of 2, no_sync": {
        "data_degree": 4, "zero_stage": 2, "batch": (8, 1),
        "sharding": ShardingSpec(shard_degree=2, gradient_sync="last_microbatch"),
    },
    "zero3 dp2 x tp2 sp, llama, no_sync": {
        "model": LLAMA, "data_degree": 2, "zero_stage": 3, "tensor_degree": 2, "sequence_parallel": True,
        "batch": (4, 1), "sharding": ONCE,
    },
    "zero3 dp4, llama, kept after forward": {
        "model": LLAMA, "data_degree": 4, "zero_stage": 3, "batch": (8, 1),
        "sharding": ShardingSpec(reshard_after_forward=False, prefetch=0),
    },
    "zero3 dp4 in groups of 2, no_sync, prefetch 2": {
        "data_degree": 4, "zero_stage": 3, "batch": (8, 1), "axis_order": ("dp", "pp", "tp"),
        "sharding": ShardingSpec(shard_degree=2, gradient_sync="last_microbatch", prefetch=2),
        "numbers": {"fused_gradient_accumulation": False},
    },
    "zero3 dp2 x pp2, tied": {"data_degree": 2, "zero_stage": 3, "pipeline": {"degree": 2}, "batch": (8, 1)},
    "zero3 dp2 x pp2 interleaved, kept": {
        "model": LLAMA, "data_degree": 2, "zero_stage": 3, "batch": (8, 1),
        "pipeline": {"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
        "sharding": ShardingSpec(reshard_after_forward=False, gradient_sync="last_microbatch"),
    },
    "zero3 dp2 x pp2 breadth-first, recompute": {
        "data_degree": 2, "zero_stage": 3, "recompute": "full", "sharding": ShardingSpec(prefetch=0),
        "pipeline": {"degree": 2, "schedule": "breadth_first", "virtual_stages": 2},
    },
    "zero3 dp4 by twos, hierarchical": {
        "data_degree": 4, "zero_stage": 3, "batch": (8, 1), "sharding": ShardingSpec(local_degree=2),
    },
    "zero3 dp4 by twos, hierarchical, llama, kept, no_sync": {
        "model": LLAMA, "data_degree": 4, "zero_stage": 3, "batch": (8, 1), "axis_order": ("dp", "pp", "tp"),
        "sharding": ShardingSpec(local_degree=2, gradient_sync="last_microbatch", reshard_after_forward=False),
    },
    "zero2 dp2 x pp2 zb_h1, no_sync": {
        "data_degree": 2, "zero_stage": 2, "pipeline": {"degree": 2, "schedule": "zb_h1"}, "batch": (8, 1),
        "sharding": ONCE,
    },
    "zero2 dp4 breadth-first v2, tied": {
        "data_degree": 4, "zero_stage": 2, "batch": (8, 1),
        "pipeline": {"degree": 1, "schedule": "breadth_first", "virtual_stages": 2},
    },
    "zero3 dp4 breadth-first v2, tied, kept": {
        "data_degree": 4, "zero_stage": 3, "batch": (8, 1), "sharding": ShardingSpec(reshard_after_forward=False),
        "pipeline": {"degree": 1, "schedule": "breadth_first", "virtual_stages": 2},
    },
    "zero3 dp4 breadth-first v2, tied, by twos": {
        "data_degree": 4, "zero_stage": 3, "batch": (8, 1), "sharding": ShardingSpec(local_degree=2),
        "pipeline": {"degree": 1, "schedule": "breadth_first", "virtual_stages": 2},
    },
    "zero3 dp4 gpipe": {"data_degree": 4, "zero_stage": 3, "batch": (8, 1), "pipeline": {"schedule": "gpipe"}},
    "osdp dp4 breadth-first v2, tied": {
        "data_degree": 4, "batch": (8, 1), "osdp": sharded_operators(**OPERATORS),
        "pipeline": {"degree": 1, "schedule": "breadth_first", "virtual_stages": 2},
    },
    "offload dp4 breadth-first v2, tied": {
        "data_degree": 4, "zero_stage": 2, "batch": (8, 1), "sharding": OFFLOAD,
        "pipeline": {"degree": 1, "schedule": "breadth_first", "virtual_stages": 2},
    },
    "offload, one rank, llama": {"model": LLAMA, "zero_stage": 2, "bucket_bytes": 4000, "sharding": OFFLOAD},
    "offload pp2, one micro-batch, llama": {
        "model": LLAMA, "zero_stage": 2, "batch": (1, 1), "sharding": OFFLOAD,
        "pipeline": {"degree": 2, "schedule": "1f1b"},
    },
    "offload dp2 x tp2 sp, recompute": {
        "data_degree": 2, "zero_stage": 2, "tensor_degree": 2, "sequence_parallel": True, "recompute": "full",
        "bucket_bytes": 4000, "sharding": OFFLOAD,
    },
    "offload dp4, tied": {"data_degree": 4, "zero_stage": 2, "batch": (8, 1), "sharding": OFFLOAD},
    "offload dp4, one micro-batch, sgd": {
        "data_degree": 4, "zero_stage": 2, "batch": (4, 1), "sharding": OFFLOAD, "numbers": SGD,
    },
    "offload dp2, no_sync": {
        "data_degree": 2, "zero_stage": 2, "bucket_bytes": 4000,
        "sharding": ShardingSpec(offload="optimizer", gradient_sync="last_microbatch"),
    },
    "osdp dp4, tied": {"data_degree": 4, "batch": (8, 1), "osdp": sharded_operators(**OPERATORS)},
    "osdp dp2 x tp2 sp, llama, no_sync, recompute": {
        "model": {**LLAMA, "num_kv_heads": 4}, "data_degree": 2, "tensor_degree": 2, "sequence_parallel": True,
        "batch": (4, 1), "sharding": ONCE, "recompute": "full",
        "osdp": sharded_operators(**OPERATORS, head=(2, 1), layer1__fc1=(1, 1)),
    },
    "layers each sharded and recomputed or not, uneven dp2 x pp2": {
        "model": LLAMA, "data_degree": 2, "batch": (8, 1), "recompute": "full", "numbers": {"recompute_layers": (1, 3)},
        "pipeline": {"degree": 2, "layers_per_stage": (3, 1)},
        "osdp": OsdpSpec(choices=choices_of_layers(TransformerSpec(**LLAMA), (0, 1), ends=True)),
    },
    "osdp dp2 x pp2, tied": {
        "data_degree": 2, "pipeline": {"degree": 2}, "batch": (8, 1), "osdp": sharded_operators(**OPERATORS),
    },
    "osdp dp2 x pp2 interleaved, table whole": {
        "data_degree": 2, "pipeline": {"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
        "osdp": sharded_operators(layer0__qkv=(2, 2), layer3__fc2=(1, 1)),
    },
    "osdp dp2 x tp2, unfused, weight gradients first": {
        "data_degree": 2, "tensor_degree": 2, "overlap_tensor_backward": False,
        "osdp": sharded_operators(**OPERATORS), "numbers": {"fused_gradient_accumulation": False},
        "sharding": ShardingSpec(prefetch=0),
    },
    "terapipe, pp4, uneven slices": {
        "pipeline": {"degree": 4, "schedule": "terapipe", "token_slices": (3, 1, 4)},
    },
    "terapipe, flash, pp2 x dp2 zero2, no_sync": {
        "model": LLAMA, "data_degree": 2, "zero_stage": 2, "batch": (4, 2), "sharding": ONCE,
        "pipeline": {"degree": 2, "schedule": "terapipe", "token_slices": (2, 2, 2, 2)},
    },
    "terapipe, pp2 x tp2 sp, recompute full": {
        "tensor_degree": 2, "sequence_parallel": True, "recompute": "full", "batch": (2, 1),
        "pipeline": {"degree": 2, "schedule": "terapipe", "token_slices": (4, 2, 2)},
    },
    "terapipe, blocking messages, pp4": {
        "model": LLAMA, "batch": (2, 1),
        "pipeline": {"degree": 4, "schedule": "terapipe", "token_slices": (4, 4), "blocking_messages": True},
    },
    "gpipe, blocking messages, scatter-gather, pp2 x tp2": {
        "tensor_degree": 2,
        "pipeline": {"degree": 2, "schedule": "gpipe", "blocking_messages": True, "scatter_gather": True},
    },
    "seq_1f1b, scatter-gather, pp2 x tp2, recompute selective": {
        "tensor_degree": 2, "recompute": "selective",
        "pipeline": {"degree": 2, "schedule": "seq_1f1b", "token_slices": (4, 4), "scatter_gather": True},
    },
    "seq_1f1b, llama, core, pp4, uneven slices": {
        "model": {**LLAMA, "attention": "core"},
        "pipeline": {"degree": 4, "schedule": "seq_1f1b", "token_slices": (1, 3, 2, 2)},
    },
    "other axis order": {
        "tensor_degree": 2, "data_degree": 2, "zero_stage": 1, "axis_order": ("pp", "tp", "dp"), "batch": (4, 2),
    },
    "sgd, pp2 x dp2": {"data_degree": 2, "pipeline": {"degree": 2}, "numbers": SGD},
    "sgd, zero3 dp2, llama": {"model": LLAMA, "data_degree": 2, "zero_stage": 3, "numbers": SGD},
    "zb_auto, pp4": {
        "pipeline": {"degree": 4, "schedule": "zb_auto", "max_live_microbatches": 6}, "batch": (8, 1),
    },
    "zb_auto, pp2 x dp2 zero1": {
        "model": {**GPT, "num_layers": 5}, "data_degree": 2, "zero_stage": 1, "batch": (8, 1),
        "pipeline": {"degree": 2, "schedule": "zb_auto"},
    },
    "aiao, pp2 v2 x dp2, auto": {"data_degree": 2, "batch": (8, 1), "pipeline": AIAO},
    "aiao, pp2 x dp2": {
        "data_degree": 2, "deferred_sync": 0.5, "batch": (8, 1), "pipeline": {"degree": 2, "schedule": "aiao"},
    },
    "aiao, pp2 v2 x dp2": {"data_degree": 2, "deferred_sync": 0.3, "batch": (8, 1), "pipeline": AIAO},
    "aiao, pp2 v2 x dp2, llama, sgd": {
        "model": LLAMA, "data_degree": 2, "deferred_sync": 0.77, "pipeline": AIAO, "numbers": SGD, "recompute": "full",
    },
    "aiao, v4 x tp2 sp x dp2, all deferred": {
        "tensor_degree": 2, "sequence_parallel": True, "data_degree": 2, "deferred_sync": 1.0,
        "pipeline": {"schedule": "aiao", "virtual_stages": 4},
    },
    "aiao, pp2 v2 x cp2": {
        "model": LLAMA, "context_degree": 2, "deferred_sync": 0.3, "batch": (4, 1), "pipeline": AIAO,
    },
    "aiao, pp2 v2 x tp2": {"tensor_degree": 2, "pipeline": AIAO},
    "dp2 zero1 x pp2, gathers overlapped": {
        "data_degree": 2, "zero_stage": 1, "overlap_parameter_gather": True, "bucket_bytes": 4000,
        "pipeline": {"degree": 2},
    },
    "dp2 zero1 x tp2 sp, gathers overlapped, sgd": {
        "tensor_degree": 2, "sequence_parallel": True, "data_degree": 2, "zero_stage": 1,
        "overlap_parameter_gather": True, "numbers": SGD,
    },
    "aiao, pp2 v2 x dp2, nothing deferred": {"data_degree": 2, "deferred_sync": 0.0, "pipeline": AIAO},
    "aiao, pp2 v2 x dp2 zero1": {"data_degree": 2, "zero_stage": 1, "pipeline": AIAO, "batch": (8, 1)},
    "aiao, v2 x tp2 sp x dp2 zero1, sgd": {
        "tensor_degree": 2, "sequence_parallel": True, "data_degree": 2, "zero_stage": 1, "numbers": SGD,
        "pipeline": {"schedule": "aiao", "virtual_stages": 2},
    },
}  # fmt: skip

ASSIGNED = (
    "one rank", "llama, tp2 sp x dp2 zero1", "zb_v, scatter-gather, pp2 x tp2", "dualpipe_v, pp2 x dp2 zero1",
    "chimera, pp2 x tp2 sp", "terapipe, pp2 x tp2 sp, recompute full", "aiao, pp2 v2 x dp2",
    "aiao, pp2 v2 x dp2 zero1",
)  # fmt: skip
"""Trainings that also run without clearing gradients, fused and not by turns."""

_RING: Mapping[str, Any] = {"tensor_degree": 2, "sequence_parallel": True, "collective_matmul": True}
RINGS: Mapping[str, Mapping[str, Any]] = {
    "collective matmul, tp4, gradients assigned": {
        **_RING, "tensor_degree": 4, "batch": (2, 1), "numbers": {"set_gradients_to_none": True},
    },
    "collective matmul, llama, zero1 tp2 x dp2, weight gradients first": {
        "model": LLAMA, **_RING, "data_degree": 2, "zero_stage": 1, "overlap_tensor_backward": False,
        "numbers": {"fused_gradient_accumulation": False},
    },
    "collective matmul, zb_h1, pp2 x tp2, recompute full": {
        **_RING, "pipeline": {"degree": 2, "schedule": "zb_h1"}, "recompute": "full",
    },
    "collective matmul, zero3 tp2 x dp2": {"model": LLAMA, **_RING, "data_degree": 2, "zero_stage": 3},
    "collective matmul, seq_1f1b, pp2 x tp2, recompute selective": {
        **_RING, "batch": (2, 1), "recompute": "selective",
        "pipeline": {"degree": 2, "schedule": "seq_1f1b", "token_slices": (4, 4)},
    },
}  # fmt: skip
"""Gathers and reduce_scatters of sequence parallelism in pieces, beside the products that they feed."""


def checked_trainings() -> dict[str, DenseTraining]:
    """Return every training that must reproduce the dense reference in float64."""
    jobs = {
        f"{name}, recompute {recompute}": training(recompute=recompute, **strategy)
        for name, strategy in (STRATEGIES | SHARDED).items()
        for recompute in RECOMPUTES
    }
    others = {name: training(**strategy) for name, strategy in (*OTHERS.items(), *RINGS.items())}
    for index, name in enumerate(ASSIGNED):
        numbers = {"set_gradients_to_none": True, "fused_gradient_accumulation": bool(index % 2)}
        old = others[name]
        others[f"{name}, assigned"] = replace(old, training=replace(old.training, **numbers))
    opened = {name: job for name, job in others.items() if isinstance(job, OpenTraining)}
    found = jobs | others | {name: decided(job, prices(), 0) for name, job in opened.items()}
    return {name: with_few_layers(job) for name, job in found.items()}


def with_few_layers(job: DenseTraining) -> DenseTraining:
    """Return a job of one stage with two layers, where a third would be like the second, and those gathered ahead."""
    parallel, model = job.parallel, job.model
    if parallel.pipeline.degree > 1 or parallel.pipeline.virtual_stages > 1 or parallel.osdp:
        return job
    ahead = parallel.sharding.units_ahead if parallel.zero_stage == 3 else 0
    return replace(job, model=replace(model, num_layers=min(model.num_layers, 2 + ahead)))


@cache
def prices(num_ranks: int = 4) -> Pricing:
    """Return the prices of some processes on this computer."""
    node = load_node("local-cpu")
    return ClusterPricing(Cluster(node, 1, num_ranks), load_profile(node.device.generation))
