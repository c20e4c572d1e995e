"""Names that other programs give to the keys of a scenario, and keys in the wrong section: the key to write instead."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from scenarios.errors import nearest

_ALIKE: Final = 0.8
"""How like a key of another section an unknown key must be to be taken for it, 0 to 1."""


class Known(Struct, frozen=True):
    """A key, other programs' names of it, and what a reader who knows these must be told: ``value`` or ``note``."""

    key: str
    names: str
    value: str = ""
    note: str = ""

    def remedy(self, name: str) -> str:
        """Return what to write in the place of one of the names."""
        stated = f": {self.value}" if self.value else ""
        note = f" ({self.note})" if self.note else ""
        return f"{name} is written as {self.key}{stated} here{note}"


_MICROBATCHES: Final = (
    "gradient_accumulation_steps gradient_accumulation grad_accum_steps grad_accum num_micro_batches microbatches "
    "micro_batches accumulate_grad_batches"
)
OTHER_NAMES: Final[tuple[Known, ...]] = (
    Known("cluster.num_nodes", "nodes nnodes n_nodes node_count num_hosts num_machines trainer_num_nodes"),
    Known("cluster.devices_per_node", "gpus_per_node num_gpus_per_node gpus_per_host n_gpus_per_node nproc_per_node "
          "devices_per_host local_world_size"),
    Known("cluster.num_nodes", "gpus num_gpus n_gpus gpu_count num_devices devices world_size",
          note="devices over those of a node; cluster.devices_per_node takes a part of each node"),
    Known("cluster.node", "gpu gpu_type gpu_model device_type node_type instance_type hardware machine"),
    Known("cluster.stragglers.device", "rank gpu_id gpu_index device_id slow_rank", note="a number, or node 2 gpu 1"),
    Known("cluster.stragglers.slowdown", "factor slow_down slowdown_factor slower"),
    Known("model.preset", "model_name", note="a name of: simulate list presets"),
    Known("model.huggingface", "model_name_or_path hf_model hf_config huggingface_id pretrained config_path"),
    Known("model.family", "model_type architecture"),
    Known("model.num_layers", "n_layers n_layer layers num_hidden_layers depth"),
    Known("model.hidden_size", "hidden_dim d_model n_embd embed_dim model_dim hidden_dimension"),
    Known("model.num_heads", "n_heads n_head heads num_attention_heads attention_heads"),
    Known("model.num_kv_heads", "n_kv_heads kv_heads num_key_value_heads num_query_groups"),
    Known("model.ffn_hidden_size", "intermediate_size ffn_dim d_ff n_inner ffn_size mlp_size feed_forward_dim"),
    Known("model.sequence_length", "seq_length seq_len seqlen max_seq_len max_seq_length max_sequence_length "
          "context_length max_position_embeddings n_positions n_ctx block_size encoder_seq_length"),
    Known("model.vocab_size", "padded_vocab_size n_vocab vocabulary_size vocab"),
    Known("model.tied_embeddings", "tie_word_embeddings tie_embeddings weight_tying"),
    Known("model.head_size", "head_dim kv_channels"),
    Known("model.rotary_base", "rope_theta rope_base"),
    Known("model.attention", "use_flash_attn flash_attention flash_attn", value="flash"),
    Known("model.experts.num_experts", "num_local_experts n_routed_experts moe_num_experts"),
    Known("model.experts.top_k", "num_experts_per_tok moe_router_topk moe_top_k"),
    Known("model.experts.ffn_hidden_size", "moe_intermediate_size moe_ffn_hidden_size"),
    Known("training.num_microbatches", _MICROBATCHES),
    Known("training.global_batch_size", f"{_MICROBATCHES} num_microbatches",
          note="microbatch_size x data degree x the micro-batches of a replica in a step"),
    Known("training.global_batch_size", "global_batch batch_size train_batch_size gbs total_batch_size"),
    Known("training.microbatch_size", "micro_batch_size micro_batch microbatch mbs local_batch_size "
          "train_micro_batch_size_per_gpu per_device_train_batch_size device_batch_size"),
    Known("training.precision", "dtype torch_dtype mixed_precision params_dtype"),
    Known("training.precision", "bf16 bfloat16", value="bf16"),
    Known("training.precision", "fp16 float16", value="fp16"),
    Known("training.precision", "fp8", value="fp8"),
    Known("training.recompute", "recompute_granularity recomputation activation_recomputation recompute_activations "
          "activation_checkpointing gradient_checkpointing checkpoint_activations"),
    Known("training.learning_rate", "lr"),
    Known("parallel.tensor.degree", "tp tp_size tp_degree tensor_parallel tensor_parallel_size tensor_parallel_degree "
          "tensor_model_parallel_size tensor_parallelism model_parallel_size mp_size mp"),
    Known("parallel.pipeline.degree", "pp pp_size pp_degree pipeline_parallel pipeline_parallel_size "
          "pipeline_parallel_degree pipeline_model_parallel_size pipeline_parallelism num_stages pipeline_stages"),
    Known("parallel.data.degree", "dp dp_size dp_degree data_parallel data_parallel_size data_parallel_degree "
          "data_parallelism dp_replicas num_replicas data_parallel_shard_degree"),
    Known("parallel.context.degree", "cp cp_size cp_degree context_parallel context_parallel_size "
          "context_parallel_degree context_parallelism"),
    Known("parallel.expert.degree", "ep ep_size ep_degree expert_parallel expert_parallel_size expert_parallel_degree "
          "expert_model_parallel_size expert_parallelism"),
    Known("parallel.tensor.sequence_parallel", "sp sequence_parallelism"),
    Known("parallel.pipeline.schedule", "pipeline_schedule pipeline_parallel_schedule"),
    Known("parallel.pipeline.virtual_stages", "vpp vpp_size virtual_pipeline virtual_pipeline_model_parallel_size "
          "interleave num_model_chunks"),
    Known("parallel.data.zero_stage", "zero zero_level zero_optimization sharding_stage"),
    Known("parallel.data.zero_stage", "fsdp fully_shard fully_sharded_data_parallel", value="3"),
    Known("parallel.data.zero_stage", "use_distributed_optimizer distributed_optimizer", value="1"),
    Known("parallel.data.shard_degree", "hybrid_shard_degree hsdp"),
    Known("parallel.data.offload", "offload_optimizer cpu_offload", value="optimizer"),
    Known("parallel.data.overlap_gradient_sync", "overlap_grad_reduce overlap_comm"),
    Known("parallel.data.overlap_parameter_gather", "overlap_param_gather"),
    Known("parallel.data.bucket", "bucket_size reduce_bucket_size bucket_cap_mb ddp_bucket_size"),
)  # fmt: skip


def name_elsewhere(name: str, known: Iterable[str], keys: Iterable[Sequence[str]]) -> str:
    """Return what to write for an unknown key, empty where nothing suggests itself.

    ``known``: the keys of its section; ``keys``: the paths of all keys of the file. Another program's name of a key
    comes first, then the same key of another section, then one that is almost the same.
    """
    paths = [tuple(path) for path in keys]
    if remedy := _other_programs(name, {".".join(path) for path in paths}):
        return remedy
    close = nearest(name, known)
    sections = dict.fromkeys(".".join(path[:-1]) for path in paths if path[-1] == name)
    if sections:
        return _in_sections(name, list(sections)) + (f"; or did you mean {close}?" if close else "")
    if close:
        return ""
    like = {path[-1]: path for path in reversed(paths)}
    alike = nearest(name, like, _ALIKE)
    return f"did you mean {'.'.join(like[alike])}?" if alike else ""


def _in_sections(name: str, sections: Sequence[str]) -> str:
    """Return where a key belongs; an empty section is the top of the file. The sections nearest to it count."""
    if "" in sections:
        return f"{name} belongs at the top of the file, under no other key"
    highest = min(section.count(".") for section in sections)
    found = [section for section in sections if section.count(".") == highest]
    if len(found) == 1:
        return f"{name} belongs under {found[0]}: write {found[0]}.{name}"
    return f"{name} belongs under one of {', '.join(found)}"


def _other_programs(name: str, keys: set[str]) -> str:
    """Return the remedy for another program's name of one of the keys, or nothing."""
    plain = name.lower().replace("-", "_").strip("_ ")
    for known in OTHER_NAMES:
        if known.key in keys and plain in known.names.split():
            return known.remedy(name)
    return ""
