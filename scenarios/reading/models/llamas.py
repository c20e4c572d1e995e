"""Models of the llama family from their ``config.json``: Llama, Mistral, Mixtral, DeepSeek, Qwen and Gemma."""

from typing import Any, Final

from scenarios.reading.models.config_file import OWN, Config

SPLIT_EVENLY: Final = "choose a model whose heads split hidden_size evenly"


def read_llama(config: Config, activation: str = "silu") -> dict[str, Any]:
    """Return a Llama, or what is shaped as one; ``activation``: that of the MLP's gate, in the file's words."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    if not config.has("head_dim") and hidden % heads:
        rule = f"hidden_size {hidden} does not divide by num_attention_heads {heads}"
        raise config.refuse("num_attention_heads", rule, SPLIT_EVENLY)
    model = _llama_family(config, activation) | {"num_kv_heads": config.integer("num_key_value_heads", default=heads)}
    size = config.integer("head_dim", default=max(1, hidden // heads))
    return model if size * heads == hidden else model | {"head_size": size}


def read_mistral(config: Config) -> dict[str, Any]:
    """Return a Llama whose layers may all have a sliding window (Jiang et al. 2023)."""
    return read_llama(config) | _window(config)


def _window(config: Config, **keys: Any) -> dict[str, Any]:
    """Return the sliding window of a model, if it has one; ``keys``: which layers have it."""
    if config.values.get("sliding_window") is None:
        return {}
    return {"sliding_window": {"size": config.integer("sliding_window"), **keys}}


def read_mixtral(config: Config) -> dict[str, Any]:
    """Return a model whose every layer has experts as wide as a llama's MLP."""
    model = read_llama(config)
    experts = {
        "num_experts": config.integer("num_local_experts", default=8),
        "top_k": config.integer("num_experts_per_tok", default=2),
        "ffn_hidden_size": model["ffn_hidden_size"],
    }
    return model | {"experts": experts}


def read_deepseek(config: Config) -> dict[str, Any]:
    """Return a model with multi-head latent attention."""
    config.require("num_key_value_heads", (config.integer("num_attention_heads"),), "every head has keys of its own")
    latent = {
        "kv_rank": config.integer("kv_lora_rank"),
        "head_size": config.integer("qk_nope_head_dim"),
        "rotary_head_size": config.integer("qk_rope_head_dim"),
        "value_head_size": config.integer("v_head_dim"),
    }
    if config.values.get("q_lora_rank") is not None:
        latent["q_rank"] = config.integer("q_lora_rank")
    quantization = config.values.get("quantization_config") or {"quant_method": "fp8"}
    if not isinstance(quantization, dict) or quantization.get("quant_method") != "fp8":
        raise config.refuse("quantization_config", "only fp8 is read over, the form that V3 is published in", OWN)
    experts = {"experts": _deepseek_experts(config)} if config.values.get("n_routed_experts") else {}
    return _llama_family(config) | {"latent_attention": latent} | experts


def _deepseek_experts(config: Config) -> dict[str, int]:
    config.require("moe_layer_freq", (1,), "all layers after the first dense ones have experts")
    width = config.integer("moe_intermediate_size")
    dense, shared = (
        config.integer(key) if config.values.get(key) else 0 for key in ("first_k_dense_replace", "n_shared_experts")
    )
    return {
        "num_experts": config.integer("n_routed_experts"),
        "top_k": config.integer("num_experts_per_tok"),
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": shared * width,
        "first_dense_layers": dense,
    }


def read_qwen2(config: Config) -> dict[str, Any]:
    """Return a Llama with biases on queries, keys and values (Yang et al. 2024, Qwen2)."""
    return read_llama(config) | {"qkv_bias": True} | _qwen_window(config)


def read_qwen3(config: Config) -> dict[str, Any]:
    """Return a Llama that normalises the heads of queries and keys (Yang et al. 2025, Qwen3)."""
    return read_llama(config) | {"query_key_norm": True} | _qwen_window(config)


def _qwen_window(config: Config) -> dict[str, Any]:
    """Return the window of a Qwen: of all layers, or of none."""
    if not config.flag("use_sliding_window", default=False):
        return {}
    layers, first = config.integer("num_hidden_layers"), config.values.get("max_window_layers", 0)
    if first not in (0, layers):
        rule = f"layers from number {first} on have a window and those before have none, which is not modelled"
        raise config.refuse("max_window_layers", rule, f"write 0 or {layers}")
    return {} if first == layers else _window(config)


def read_qwen2_moe(config: Config) -> dict[str, Any]:
    """Return a Qwen2 whose layers have experts, and shared ones that are weighed (Qwen1.5-MoE, Qwen2-57B-A14B)."""
    shared = config.integer("shared_expert_intermediate_size")
    own = {"shared_ffn_hidden_size": shared, "shared_gate": True}
    return read_qwen2(config) | {"experts": _qwen_experts(config) | own}


def read_qwen3_moe(config: Config) -> dict[str, Any]:
    """Return a Qwen3 whose layers have experts (Qwen3-30B-A3B, Qwen3-235B-A22B)."""
    return read_qwen3(config) | {"experts": _qwen_experts(config)}


def _qwen_experts(config: Config) -> dict[str, int]:
    config.require("decoder_sparse_step", (1,), "every layer has experts")
    config.require("mlp_only_layers", ([],), "every layer has experts")
    return {
        "num_experts": config.integer("num_experts"),
        "top_k": config.integer("num_experts_per_tok"),
        "ffn_hidden_size": config.integer("moe_intermediate_size"),
    }


def read_gemma2(config: Config) -> dict[str, Any]:
    """Return a Gemma 2: every other layer has a window, scores and logits are capped (Gemma Team 2024)."""
    caps = {
        key: config.number(name, 0.0)
        for key, name in (("score_cap", "attn_logit_softcapping"), ("logit_cap", "final_logit_softcapping"))
        if config.has(name)
    }
    attention = {"attention": "core"} if "score_cap" in caps else {}
    return _gemma(config) | _window(config, global_every=2) | caps | attention


def read_gemma3(config: Config) -> dict[str, Any]:
    """Return a Gemma 3: five layers with a window to one without, heads normalised (Gemma Team 2025)."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        config.require(key, (), "Gemma 3 has no caps")
    keys = {
        "global_every": config.integer("sliding_window_pattern", "_sliding_window_pattern", default=6),
        "rotary_base": _rotary_base(config, "sliding_attention", "rope_local_base_freq"),
    }
    return _gemma(config) | {"query_key_norm": True} | _window(config, **keys)


def _gemma(config: Config) -> dict[str, Any]:
    """Return what Gemma 2 and 3 share."""
    config.require("hidden_activation", ("gelu_pytorch_tanh",), "the feed-forward layer is GeGLU")
    model = read_llama(config, "gelu_pytorch_tanh") | {"gate": "gelu", "post_norms": True, "scaled_embeddings": True}
    return model | {"tied_embeddings": config.flag("tie_word_embeddings", default=True)}


def _llama_family(config: Config, activation: str = "silu") -> dict[str, Any]:
    """Return what all models of the llama family have, whatever their heads."""
    config.require("hidden_act", (activation,), "the feed-forward layer is gated by another function")
    config.require("attention_dropout", (0, 0.0), "the llama family has no dropout")
    config.require("pretraining_tp", (1,), "tensor parallelism is the scenario's choice")
    return {
        "family": "llama",
        "num_layers": config.integer("num_hidden_layers"),
        "hidden_size": config.integer("hidden_size"),
        "num_heads": config.integer("num_attention_heads"),
        "ffn_hidden_size": config.integer("intermediate_size"),
        "sequence_length": config.integer("max_position_embeddings"),
        "vocab_size": config.integer("vocab_size"),
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
        "rotary_base": _rotary_base(config, "full_attention", "rope_theta"),
    }


def _rotary_base(config: Config, kind: str, name: str) -> Any:
    """Return the base of rotary positions of one kind of layer: in the newer form of the file nested, or by a key."""
    rope = config.values.get("rope_parameters")
    rope = rope.get(kind, rope) if isinstance(rope, dict) else None
    nested = rope.get("rope_theta") if isinstance(rope, dict) else None
    return config.number(name, 10000.0) if nested is None else nested
