"""Read a model from a Hugging Face ``config.json``: Llama, Mixtral, DeepSeek and GPT-2 style.

Whatever would change the layers' shapes or work and is not modelled is refused by name. Not refused, because it
changes neither: ``rope_scaling`` (other rotation angles, the same rotations), how experts are scored and grouped,
epsilons, initialisation, token ids and generation settings. Nor ``num_nextn_predict_layers``: layers that predict
further tokens, which Hugging Face's own model leaves out.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scenarios.errors import Origin, ScenarioError, suggestion
from scenarios.reading.documents.text_file import read_text
from scenarios.reading.documents.yaml_tree import describe

_OWN: Final = "use the model's own config.json"
_SHAPE: Final = "for a model that is almost one of these, write its shape as keys: family, num_layers, hidden_size, ..."
_WITHOUT: Final = "choose a model without it"
MAX_NUMBER: Final = 10**12
"""No number of a model is larger; the schema of scenarios has the limits of each."""


@dataclass(frozen=True, slots=True)
class Config:
    """A parsed ``config.json``."""

    path: Path
    text: str
    values: dict[str, Any]

    def refuse(self, key: str, rule: str, remedy: str) -> ScenarioError:
        """Return the error for one key, with the line that it stands in."""
        match = re.search(rf'^.*?"{re.escape(key)}"\s*:', self.text, re.DOTALL)
        line = match[0].count("\n") + 1 if match else 1
        return ScenarioError(Origin(str(self.path), line), key, rule, remedy)

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return the first of the keys that is there, a whole number of 1 or more."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise self.refuse(name, f"a whole number of 1 or more belongs here, not {describe(value)}", _OWN)
            if value > MAX_NUMBER:
                raise self.refuse(name, f"must be at most {MAX_NUMBER:,}, got {describe(value)}", _OWN)
            return value
        if default is None:
            raise self.refuse(names[0], "the key is required and missing", "use the config.json of a whole model")
        return default

    def number(self, name: str, default: float) -> float:
        """Return a number."""
        value = self.values.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_NUMBER:
            raise self.refuse(name, f"a number belongs here, not {describe(value)}", _OWN)
        return float(value)

    def require(self, name: str, allowed: tuple[object, ...], why: str) -> None:
        """Raise ScenarioError unless the key is missing, null or one of ``allowed``."""
        value = self.values.get(name)
        if value is not None and value not in allowed:
            listed = " or ".join(json.dumps(choice) for choice in allowed)
            raise self.refuse(name, f"{json.dumps(value)[:60]} is not modelled: {why}", f"only {listed} is modelled")


def read_model(path: Path) -> dict[str, Any]:
    """Return the keys of a ``model`` section that describe the model of a ``config.json``.

    ``sequence_length`` is the longest that the model takes. Raises ScenarioError with file, line and key for
    files that are not such a configuration, and for models that are not modelled.
    """
    config = _read_config(path)
    kind = config.values.get("model_type")
    if not isinstance(kind, str) or kind not in _READERS:
        rule = f"models of type {describe(kind)} are not modelled"
        raise config.refuse("model_type", rule, f"{suggestion(str(kind), _READERS)}; {_SHAPE}")
    for key, why in _NOT_MODELLED.items():
        if config.values.get(key) and key not in _READ_BY.get(kind, ()):
            raise config.refuse(key, f"not modelled: {why}", _REMEDIES.get(key, _WITHOUT))
    return _READERS[kind](config)


def _read_config(path: Path) -> Config:
    text = read_text(path, "use the config.json of a whole model")
    try:
        values = json.loads(text, object_pairs_hook=lambda pairs: _once(path, text, pairs))
    except ScenarioError:
        raise
    except json.JSONDecodeError as error:
        rule = f"this is not JSON: {error.msg}"
        raise ScenarioError(Origin(str(path), error.lineno), "", rule, _OWN) from error
    except (RecursionError, ValueError) as error:  # nested too deep, or a number too long
        raise ScenarioError(Origin(str(path)), "", "this is no model's config", "use a config.json") from error
    if not isinstance(values, dict):
        rule = f"the file holds {describe(values)}, where a mapping belongs"
        raise ScenarioError(Origin(str(path)), "", rule, _OWN)
    return Config(path=path, text=text, values=values)


def _once(path: Path, text: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping of JSON. Raises ScenarioError for a key that is written twice."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise Config(path, text, values).refuse(key, "the key is written twice", "keep one of the two")
        values[key] = value
    return values


def _read_llama(config: Config) -> dict[str, Any]:
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    if hidden % heads:
        rule = f"hidden_size {hidden} does not divide by num_attention_heads {heads}"
        raise config.refuse("num_attention_heads", rule, "choose a model whose heads split hidden_size evenly")
    if (size := config.integer("head_dim", default=hidden // heads)) * heads != hidden:
        rule = f"heads of {size} are not modelled: hidden_size / heads = {hidden // heads}"
        raise config.refuse("head_dim", rule, "choose a model whose heads split hidden_size evenly")
    return _llama_family(config) | {"num_kv_heads": config.integer("num_key_value_heads", default=heads)}


def _read_mixtral(config: Config) -> dict[str, Any]:
    """Return a model whose every layer has experts as wide as a llama's MLP."""
    model = _read_llama(config)
    experts = {
        "num_experts": config.integer("num_local_experts", default=8),
        "top_k": config.integer("num_experts_per_tok", default=2),
        "ffn_hidden_size": model["ffn_hidden_size"],
    }
    return model | {"experts": experts}


def _read_deepseek(config: Config) -> dict[str, Any]:
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
        raise config.refuse("quantization_config", "only fp8 is read over, the form that V3 is published in", _OWN)
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


def _llama_family(config: Config) -> dict[str, Any]:
    """Return what all models of the llama family have, whatever their heads."""
    config.require("hidden_act", ("silu",), "the feed-forward layer is SwiGLU")
    config.require("attention_dropout", (0, 0.0), "the llama family has no dropout")
    config.require("pretraining_tp", (1,), "tensor parallelism is the scenario's choice")
    rope = config.values.get("rope_parameters")
    nested = rope.get("rope_theta") if isinstance(rope, dict) else None
    return {
        "family": "llama",
        "num_layers": config.integer("num_hidden_layers"),
        "hidden_size": config.integer("hidden_size"),
        "num_heads": config.integer("num_attention_heads"),
        "ffn_hidden_size": config.integer("intermediate_size"),
        "sequence_length": config.integer("max_position_embeddings"),
        "vocab_size": config.integer("vocab_size"),
        "tied_embeddings": _flag(config, "tie_word_embeddings", default=False),
        "rotary_base": config.number("rope_theta", 10000.0) if nested is None else nested,
    }


def _read_gpt2(config: Config) -> dict[str, Any]:
    config.require("activation_function", ("gelu_new", "gelu_pytorch_tanh", "gelu"), "the activation is GELU")
    config.require("scale_attn_weights", (True,), "attention scores are scaled")
    hidden = config.integer("n_embd", "hidden_size")
    return {
        "family": "gpt",
        "num_layers": config.integer("n_layer", "num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": config.integer("n_head", "num_attention_heads"),
        "ffn_hidden_size": config.integer("n_inner", default=4 * hidden),
        "sequence_length": config.integer("n_positions", "n_ctx", "max_position_embeddings"),
        "vocab_size": config.integer("vocab_size"),
        "tied_embeddings": _flag(config, "tie_word_embeddings", default=True),
        "dropout": _gpt2_dropout(config),
    }


def _gpt2_dropout(config: Config) -> float:
    """Return the one dropout probability of a GPT-2."""
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    probabilities = {name: config.number(name, 0.1) for name in names}
    for name in names:
        if probabilities[name] != probabilities[names[0]]:
            rule = f"{probabilities[name]:g} differs from {names[0]} = {probabilities[names[0]]:g}"
            raise config.refuse(name, f"{rule}; one dropout probability is modelled", "make the three equal")
    return probabilities[names[0]]


def _flag(config: Config, name: str, *, default: bool) -> bool:
    value = config.values.get(name, default)
    if not isinstance(value, bool):
        raise config.refuse(name, f"true or false belongs here, not {describe(value)}", _OWN)
    return value


_READERS: Final[dict[str, Callable[[Config], dict[str, Any]]]] = {
    "deepseek_v2": _read_deepseek,
    "deepseek_v3": _read_deepseek,
    "gpt2": _read_gpt2,
    "llama": _read_llama,
    "mistral": _read_llama,
    "mixtral": _read_mixtral,
}
_DEEPSEEK: Final = ("n_routed_experts", "quantization_config")
_READ_BY: Final = {"deepseek_v2": _DEEPSEEK, "deepseek_v3": _DEEPSEEK, "mixtral": ("num_local_experts",)}
"""By type of model, keys of ``_NOT_MODELLED`` that are modelled of it."""
_NOT_MODELLED: Final = {
    "sliding_window": "sliding-window attention",
    "attention_bias": "biases in the attention of a llama",
    "mlp_bias": "biases in the feed-forward layer of a llama",
    "num_local_experts": "mixture of experts",
    "num_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "partial_rotary_factor": "rotary positions on a part of each head",
    "quantization_config": "quantized weights",
    "add_cross_attention": "cross-attention",
    "scale_attn_by_inverse_layer_idx": "attention scaled by layer",
    "reorder_and_upcast_attn": "attention in higher precision",
}
_REMEDIES: Final = {
    "sliding_window": "where no sequence is longer than the window, write null here and set model.sequence_length",
}
"""By key of ``_NOT_MODELLED``, what to do where another model is not the only way out."""
