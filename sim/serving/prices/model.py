"""A decoder as a service sees it: its sizes, its weights, and the keys and values that a token leaves behind."""

from msgspec import Struct

from costmodels.kernels.scaled_latents import LATENT_DTYPE, scaled_caches
from costmodels.kernels.tensor import TensorSpec, total_bytes
from sim.serving.prices.calls import WIDE


class ServedExperts(Struct, frozen=True, kw_only=True):
    """Experts in place of the MLP; widths in channels. See ``ExpertsSpec`` of training for the words."""

    num_experts: int
    top_k: int
    ffn_hidden_size: int
    shared_ffn_hidden_size: int = 0
    first_dense_layers: int = 0

    def touched(self, num_tokens: int) -> float:
        """Return the expected number of experts that some of these tokens go to, each to ``top_k`` at random."""
        return self.num_experts * (1.0 - (1.0 - self.top_k / self.num_experts) ** num_tokens)


class ServedLatent(Struct, frozen=True, kw_only=True):
    """Sizes of latent attention. See ``LatentAttention`` of training for the words."""

    kv_rank: int
    head_size: int
    rotary_head_size: int
    value_head_size: int
    q_rank: int | None = None

    @property
    def cached_size(self) -> int:
        """Return the width of the vector that is cached per token, for all heads."""
        return self.kv_rank + self.rotary_head_size

    def cached_bytes(self, dtype: str) -> int:
        """Return the bytes that a token leaves in a layer's cache; see ``costmodels/kernels/scaled_latents``."""
        if dtype == LATENT_DTYPE:
            position = TensorSpec((1, 1, 1, self.rotary_head_size), WIDE)
            return total_bytes(scaled_caches(1, self.kv_rank, position))
        return TensorSpec((self.cached_size,), dtype).num_bytes

    @property
    def query_head_size(self) -> int:
        """Return the width of a head's query and key."""
        return self.head_size + self.rotary_head_size

    def parameters(self, hidden_size: int, num_heads: int) -> tuple[int, int]:
        """Return a layer's parameters: those that every tensor-parallel rank holds, and those that ranks share."""
        queries, keys = num_heads * self.query_head_size, num_heads * (self.head_size + self.value_head_size)
        down = hidden_size * (self.cached_size + (self.q_rank or 0))
        up = (self.q_rank or hidden_size) * queries + self.kv_rank * keys
        return down, up + num_heads * self.value_head_size * hidden_size


class ServedModel(Struct, frozen=True, kw_only=True):
    """A decoder-only transformer; ``gated``: the MLP has a gate beside its up projection.

    ``latent``: sizes of latent attention, whose heads have sizes of their own.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_hidden_size: int
    vocab_size: int
    gated: bool = True
    tied_embeddings: bool = False
    experts: ServedExperts | None = None
    latent: ServedLatent | None = None

    @property
    def num_dense_layers(self) -> int:
        """Return the layers whose MLP is not made of experts."""
        return self.num_layers if self.experts is None else self.experts.first_dense_layers

    @property
    def attention_parameters(self) -> tuple[int, int]:
        """Return the parameters of a layer's attention: of every tensor-parallel rank, and those that ranks share."""
        if self.latent is not None:
            return self.latent.parameters(self.hidden_size, self.num_heads)
        return 0, 2 * self.hidden_size * self.head_size * (self.num_heads + self.num_kv_heads)

    @property
    def absorbed_parameters(self) -> int:
        """Return a layer's parameters that steps absorb into queries and results, which always have 16 bits."""
        of = self.latent
        return 0 if of is None else of.kv_rank * self.num_heads * (of.head_size + of.value_head_size)

    def mlp_parameters(self, width: int) -> int:
        """Return the parameters of an MLP of a width."""
        return (3 if self.gated else 2) * self.hidden_size * width

    @property
    def expert_parameters(self) -> tuple[int, int]:
        """Return a layer's parameters of the router and shared experts, and of all other experts."""
        of = self.experts
        if of is None:
            return 0, 0
        common = self.mlp_parameters(of.shared_ffn_hidden_size) + self.hidden_size * of.num_experts
        return common, self.mlp_parameters(of.num_experts * of.ffn_hidden_size)

    @property
    def num_parameters(self) -> int:
        """Return the parameters of all matrices, embedding and output layer included."""
        ends = (1 if self.tied_embeddings else 2) * self.vocab_size * self.hidden_size
        dense = self.num_dense_layers * self.mlp_parameters(self.ffn_hidden_size)
        sparse = (self.num_layers - self.num_dense_layers) * sum(self.expert_parameters)
        return ends + self.num_layers * sum(self.attention_parameters) + dense + sparse

    def cached_bytes(self, dtype: str, tensor_degree: int = 1) -> int:
        """Return the bytes that a token leaves in a layer's cache of a type, on one rank of a tensor-parallel group."""
        if self.latent is not None:
            return self.latent.cached_bytes(dtype)
        heads = max(1, self.num_kv_heads // tensor_degree)
        return TensorSpec((2, heads, self.head_size), dtype).num_bytes
