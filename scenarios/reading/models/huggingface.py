"""Read a model from a Hugging Face ``config.json``: Llama, Mistral, Mixtral, DeepSeek, Qwen, Gemma and GPT-2 style.

Whatever would change the layers' shapes or work and is not modelled is refused by name. Not refused, because it
changes neither: ``rope_scaling`` (other rotation angles, the same rotations), how experts are scored and grouped, how
scores of attention are scaled, epsilons, initialisation, token ids and generation settings. Nor
``num_nextn_predict_layers``: layers that predict further tokens, which Hugging Face's own model leaves out.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from scenarios.errors import suggestion
from scenarios.reading.documents.yaml_tree import describe
from scenarios.reading.models import llamas
from scenarios.reading.models.config_file import Config, read_config

_SHAPE: Final = "for a model that is almost one of these, write its shape as keys: family, num_layers, hidden_size, ..."
_WITHOUT: Final = "choose a model without it"


def read_model(path: Path) -> dict[str, Any]:
    """Return the keys of a ``model`` section that describe the model of a ``config.json``.

    ``sequence_length`` is the longest that the model takes. Raises ScenarioError with file, line and key for
    files that are not such a configuration, and for models that are not modelled.
    """
    config = read_config(path)
    kind = config.values.get("model_type")
    if not isinstance(kind, str) or kind not in _READERS:
        rule = f"models of type {describe(kind)} are not modelled"
        raise config.refuse("model_type", rule, f"{suggestion(str(kind), _READERS)}; {_SHAPE}")
    for key, why in _NOT_MODELLED.items():
        if config.values.get(key) and key not in _READ_BY.get(kind, ()):
            raise config.refuse(key, f"not modelled: {why}", _REMEDIES.get(key, _WITHOUT))
    return _READERS[kind](config)


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
        "tied_embeddings": config.flag("tie_word_embeddings", default=True),
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


_READERS: Final[dict[str, Callable[[Config], dict[str, Any]]]] = {
    "deepseek_v2": llamas.read_deepseek,
    "deepseek_v3": llamas.read_deepseek,
    "gemma2": llamas.read_gemma2,
    "gemma3_text": llamas.read_gemma3,
    "gpt2": _read_gpt2,
    "llama": llamas.read_llama,
    "mistral": llamas.read_mistral,
    "mixtral": llamas.read_mixtral,
    "qwen2": llamas.read_qwen2,
    "qwen2_moe": llamas.read_qwen2_moe,
    "qwen3": llamas.read_qwen3,
    "qwen3_moe": llamas.read_qwen3_moe,
}
_DEEPSEEK: Final = ("n_routed_experts", "quantization_config")
_QWEN: Final = ("sliding_window",)
_READ_BY: Final = {
    "deepseek_v2": _DEEPSEEK, "deepseek_v3": _DEEPSEEK, "mixtral": ("num_local_experts",),
    "mistral": ("sliding_window",), "gemma2": ("sliding_window",), "gemma3_text": ("sliding_window",),
    "qwen2": _QWEN, "qwen3": _QWEN, "qwen2_moe": (*_QWEN, "num_experts"), "qwen3_moe": (*_QWEN, "num_experts"),
}  # fmt: skip
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
