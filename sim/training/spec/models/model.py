"""Transformer models: family, sizes, and the costs that no strategy changes."""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from sim.training.errors import SpecError
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.latent import LatentAttention
from sim.training.spec.models.window import SlidingWindow

_VARIATIONS: Final[Mapping[str, object]] = {
    "own_head_size": None, "qkv_bias": False, "query_key_norm": False, "gate": "silu", "post_norms": False,
    "scaled_embeddings": False, "sliding_window": None, "score_cap": 0.0, "logit_cap": 0.0,
}  # fmt: skip
"""Attributes that newer models of the llama family change, with the values of a Llama."""
_OF_HEADS: Final = ("own_head_size", "qkv_bias", "query_key_norm")

_SIZES: Final = (
    "num_heads", "num_kv_heads", "hidden_size", "head_size", "ffn_hidden_size", "vocab_size", "sequence_length",
)  # fmt: skip


class LayerKind(Struct, frozen=True):
    """All in which layers of a model may differ but in the numbers of their weights."""

    has_experts: bool
    window: SlidingWindow | None
    rotary_base: float


class TransformerSpec(Struct, frozen=True, kw_only=True):
    """A decoder-only transformer.

    ``gpt``: learned positions, layer norm, biases, GELU, dropout (Megatron-LM's GPT).
    ``llama``: rotary positions, RMS norm, no biases, SwiGLU, grouped-query attention. The fields from ``own_head_size``
    to ``logit_cap`` are what newer models of this family change (Qwen 2 and 3, Gemma 2 and 3, Mistral).
    """

    family: Literal["gpt", "llama"]
    num_layers: int
    hidden_size: int
    num_heads: int
    sequence_length: int
    vocab_size: int
    num_kv_heads: int
    ffn_hidden_size: int
    tied_embeddings: bool
    attention: Literal["core", "flash"]
    """``core``: scores, softmax and context as separate kernels, scores kept; ``flash``: one fused kernel."""
    causal: bool = True
    """A query sees the keys up to its own; false: all of its sequence."""
    dropout: float = 0.0
    rotary_base: float = 10000.0
    latent_attention: LatentAttention | None = None
    """Compressed vectors of which queries, keys and values are made; None: they are made of the hidden state."""
    own_head_size: int | None = None
    """Width of a head; None: hidden_size / num_heads."""
    qkv_bias: bool = False
    """Queries, keys and values have biases."""
    query_key_norm: bool = False
    """Every head of queries and keys is normalised before positions turn it."""
    gate: Literal["silu", "gelu"] = "silu"
    """The activation of the MLP's gate: SwiGLU or GeGLU."""
    post_norms: bool = False
    """The outputs of attention and MLP are normalised before they are added to the residual stream."""
    scaled_embeddings: bool = False
    """Embedded tokens are multiplied by the root of the hidden size."""
    sliding_window: SlidingWindow | None = None
    """Layers that see a part of the sequence; None: all see all of it."""
    score_cap: float = 0.0
    """Attention scores are kept below it by a tanh; 0: they are not."""
    logit_cap: float = 0.0
    """The head's logits are kept below it by a tanh; 0: they are not."""
    experts: ExpertsSpec | None = None
    """In the place of the MLP of all layers, or of all but the first ones; None: every layer has an MLP."""

    def __post_init__(self) -> None:
        if self.family == "llama" and self.dropout:
            raise SpecError("model.dropout", "the llama family has no dropout", "leave it out")
        self._check_variations()
        if self.latent_attention is not None:
            self._check_latent()
        else:
            self._check_heads()
        if self.experts is not None and self.experts.first_dense_layers >= self.num_layers:
            raise SpecError(
                "model.experts.first_dense_layers",
                f"{self.experts.first_dense_layers} of {self.num_layers} layers would have no experts, which is all",
                f"write a number of 0 to {self.num_layers - 1}, or leave experts out",
            )

    def _check_variations(self) -> None:
        """Raise SpecError where a variation of the llama family does not go with the rest of the model."""
        for name, default in _VARIATIONS.items():
            changed, key = getattr(self, name) != default, f"model.{name.removeprefix('own_')}"
            if changed and self.family != "llama":
                raise SpecError(key, "only models of the llama family have it", "leave it out")
            if changed and self.latent_attention is not None and name in _OF_HEADS:
                raise SpecError(key, "latent attention is built without it", "leave one of the two out")
        if self.score_cap and self.attention == "flash":
            rule = "fused attention is built without a cap on its scores"
            raise SpecError("model.score_cap", rule, "write attention: core, or score_cap: 0")

    def _check_latent(self) -> None:
        """Raise SpecError where latent attention does not go with the rest of the model."""
        if self.family != "llama":
            rule, remedy = f"it is built for the llama family, and this is {self.family}", "leave it out"
            raise SpecError("model.latent_attention", rule, remedy)
        if self.num_kv_heads != self.num_heads:
            raise SpecError(
                "model.num_kv_heads",
                f"under latent attention every head has keys and values of its own, {self.num_heads} in all",
                "leave it out",
            )

    def _check_heads(self) -> None:
        """Raise SpecError where heads do not divide what they share."""
        if self.own_head_size is None and self.hidden_size % self.num_heads:
            raise SpecError(
                "model.num_heads",
                f"hidden_size {self.hidden_size} does not divide by num_heads {self.num_heads}",
                f"choose a divisor of {self.hidden_size}, or write head_size",
            )
        if self.num_heads % self.num_kv_heads:
            raise SpecError(
                "model.num_kv_heads",
                f"num_heads {self.num_heads} does not divide by num_kv_heads {self.num_kv_heads}",
                f"choose a divisor of {self.num_heads}",
            )
        if self.own_head_size is not None and self.head_size % 2:
            rule = f"rotary positions turn pairs of channels, and {self.head_size} is odd"
            raise SpecError("model.head_size", rule, f"write {self.head_size + 1}")
        if self.family == "llama" and self.head_size % 2:
            raise SpecError(
                "model.num_heads",
                f"rotary positions need an even head size, {self.hidden_size} / {self.num_heads} = {self.head_size}",
                "choose another num_heads",
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes that tensor parallelism may cut, by scenario key."""
        experts = self.experts
        widths = ("ffn_hidden_size", "shared_ffn_hidden_size") if experts else ()
        return {
            **{f"model.{key}": getattr(self, key) for key in _SIZES},
            **{f"model.experts.{key}": getattr(experts, key) for key in widths},
        }

    @property
    def head_size(self) -> int:
        """Return the width of one attention head; of latent attention that of its output."""
        if self.latent_attention is not None:
            return self.latent_attention.value_head_size
        return self.own_head_size or self.hidden_size // self.num_heads

    @property
    def activation(self) -> Literal["gelu", "swiglu", "geglu"]:
        """Return the kernel between the two products of an MLP."""
        if self.family == "gpt":
            return "gelu"
        return "swiglu" if self.gate == "silu" else "geglu"

    def kind_of(self, layer: int) -> LayerKind:
        """Return the kind of a layer."""
        return LayerKind(self.has_experts(layer), self.window_of(layer), self.rotary_base_of(layer))

    def rotary_base_of(self, layer: int) -> float:
        """Return the base of the rotary frequencies of a layer."""
        window = self.sliding_window
        own = window.rotary_base if window is not None and window.is_of(layer) else None
        return own or self.rotary_base

    def window_of(self, layer: int) -> SlidingWindow | None:
        """Return the sliding window of a layer; None: it sees the whole sequence, or the window is as long."""
        window = self.sliding_window
        hides = window is not None and window.is_of(layer) and window.size < self.sequence_length
        return window if hides else None

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer has experts in the place of its MLP."""
        return self.experts is not None and layer >= self.experts.first_dense_layers

    @property
    def num_expert_layers(self) -> int:
        """Return the number of layers that have experts."""
        return self.num_layers - self.experts.first_dense_layers if self.experts else 0

    @property
    def layer_parameters(self) -> int:
        """Return the number of parameters of one layer with an MLP."""
        return self.attention_parameters + self.mlp_parameters

    @property
    def attention_parameters(self) -> int:
        """Return the number of parameters of one layer but for its MLP: attention and both norms."""
        h, qkv = self.hidden_size, (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        norms = (4 if self.family == "gpt" or self.post_norms else 2) * h
        norms += self.latent_attention.norm_parameters if self.latent_attention else 0
        norms += 2 * self.head_size if self.query_key_norm else 0
        biases = (qkv if self.family == "gpt" or self.qkv_bias else 0) + (h if self.family == "gpt" else 0)
        return self.attention_products + norms + biases

    @property
    def mlp_parameters(self) -> int:
        """Return the number of parameters of one MLP."""
        return self.mlp_products + (self.ffn_hidden_size + self.hidden_size if self.family == "gpt" else 0)

    @property
    def num_parameters(self) -> int:
        """Return the number of parameters, a tied embedding counted once, and every expert."""
        h = self.hidden_size
        embeddings = self.vocab_size * h * (1 if self.tied_embeddings else 2)
        positions, final_norm = (self.sequence_length * h, 2 * h) if self.family == "gpt" else (0, h)
        experts = self.experts.num_parameters(h, self.mlp_matrices) if self.experts else 0
        layers = self.num_layers * self.attention_parameters + self._over_layers(self.mlp_parameters, experts)
        return layers + embeddings + positions + final_norm

    def model_flop(self, num_sequences: int, reached: float | None = None) -> float:
        """Return the FLOP to train on ``num_sequences`` sequences: forward and backward, without recomputation.

        ``reached``: how many experts a token reaches on the mean; None: all that it chooses.
        Every matrix product counts 2MKN forward and twice that backward, of experts as many as a token reaches;
        attention counts in full, no causal skipping, of a window what it shows; the rest counts nothing. For GPT it is
        72·B·s·L·h²·(1 + s/6h + V/12Lh) (Narayanan et al. 2021, section 3; Korthikanti et al. 2022, appendix A).
        """
        s, h = self.sequence_length, self.hidden_size
        layers = (
            self.num_layers * self.attention_products + self.seen_keys(range(self.num_layers)) * self.score_products
        )
        layers += (self.num_layers - self.num_expert_layers) * self.mlp_products
        products = float(layers + h * self.vocab_size)
        if self.experts is not None:
            products += self.num_expert_layers * self.experts.products(h, self.mlp_matrices, reached)
        return 6.0 * num_sequences * s * products

    def _over_layers(self, of_mlp: int, of_experts: int) -> int:
        """Return the sum over all layers of what each has of its MLP, or of its experts."""
        return (self.num_layers - self.num_expert_layers) * of_mlp + self.num_expert_layers * of_experts

    @property
    def layer_products(self) -> int:
        """Return the multiplications of the products with weights of one layer with an MLP, per token."""
        return self.attention_products + self.mlp_products

    @property
    def attention_products(self) -> int:
        """Return the multiplications of attention's products with weights, per token and layer."""
        h = self.hidden_size
        if self.latent_attention is not None:
            return self.latent_attention.products(h, self.num_heads)
        return h * 2 * (self.num_heads + self.num_kv_heads) * self.head_size

    def seen_keys(self, layers: range) -> int:
        """Return how many keys a query sees, summed over layers: those of a sequence or a window, none skipped."""
        windows = [window.size for layer in layers if (window := self.window_of(layer))]
        return (len(layers) - len(windows)) * self.sequence_length + sum(windows)

    @property
    def mlp_products(self) -> int:
        """Return the multiplications of the MLP's products, per token and layer."""
        return self.mlp_matrices * self.hidden_size * self.ffn_hidden_size

    @property
    def score_products(self) -> int:
        """Return the multiplications of all heads per query and key: for the score, and for what it weighs."""
        query = self.latent_attention.query_head_size if self.latent_attention else self.head_size
        return self.num_heads * (query + self.head_size)

    @property
    def mlp_matrices(self) -> int:
        """Return how many weights as large as hidden times feed-forward an MLP has: SwiGLU has a gate."""
        return 2 if self.family == "gpt" else 3
