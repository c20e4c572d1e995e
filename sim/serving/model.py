"""A decoder as a service sees it: its sizes, its weights, and the keys and values that a token leaves behind."""

from msgspec import Struct


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


class ServedModel(Struct, frozen=True, kw_only=True):
    """A decoder-only transformer; ``gated``: the MLP has a gate beside its up projection."""

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

    @property
    def num_dense_layers(self) -> int:
        """Return the layers whose MLP is not made of experts."""
        return self.num_layers if self.experts is None else self.experts.first_dense_layers

    @property
    def attention_parameters(self) -> int:
        """Return the parameters of the four projections of a layer's attention."""
        return 2 * self.hidden_size * self.head_size * (self.num_heads + self.num_kv_heads)

    def mlp_parameters(self, width: int) -> int:
        """Return the parameters of an MLP of a width."""
        return (3 if self.gated else 2) * self.hidden_size * width

    @property
    def num_parameters(self) -> int:
        """Return the parameters of all matrices, embedding and output layer included."""
        ends = (1 if self.tied_embeddings else 2) * self.vocab_size * self.hidden_size
        dense = self.num_dense_layers * self.mlp_parameters(self.ffn_hidden_size)
        sparse = 0
        if self.experts is not None:
            of = self.experts
            width = of.num_experts * of.ffn_hidden_size + of.shared_ffn_hidden_size
            sparse = (self.num_layers - self.num_dense_layers) * (
                self.mlp_parameters(width) + self.hidden_size * of.num_experts
            )
        return ends + self.num_layers * self.attention_parameters + dense + sparse

    def kv_bytes_per_token(self, bytes_per_element: int, tensor_degree: int = 1) -> int:
        """Return the bytes of a token's keys and values in all layers, on one rank of a tensor-parallel group."""
        heads = max(1, self.num_kv_heads // tensor_degree)
        return 2 * self.num_layers * heads * self.head_size * bytes_per_element
