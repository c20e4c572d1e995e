"""The sizes of multi-head latent attention, and the costs that no strategy changes."""

from msgspec import Struct

from sim.training.errors import SpecError


class LatentAttention(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1).

    Keys and values of all heads are made of one compressed vector per token, ``kv_rank`` wide, and queries of another,
    ``q_rank`` wide; None: of the hidden state itself. Positions turn channels of their own, ``rotary_head_size`` per
    head beside its ``head_size``, and all heads share those of the key.
    """

    kv_rank: int
    head_size: int
    rotary_head_size: int
    value_head_size: int
    q_rank: int | None = None

    def __post_init__(self) -> None:
        if self.rotary_head_size % 2:
            raise SpecError(
                "model.latent_attention.rotary_head_size",
                f"rotary positions turn pairs of channels, and {self.rotary_head_size} is odd",
                f"write {self.rotary_head_size + 1}",
            )

    @property
    def query_head_size(self) -> int:
        """Return the width of a head's query and key: with and without positions."""
        return self.head_size + self.rotary_head_size

    @property
    def kv_head_size(self) -> int:
        """Return how much of a head comes out of the compressed keys and values."""
        return self.head_size + self.value_head_size

    @property
    def norm_parameters(self) -> int:
        """Return the number of weights in the norms of compressed vectors."""
        return self.kv_rank + (self.q_rank or 0)

    def products(self, hidden_size: int, num_heads: int) -> int:
        """Return the multiplications of the products with weights per token, as many as there are such weights."""
        queries, keys = num_heads * self.query_head_size, num_heads * self.kv_head_size
        q = hidden_size * queries if self.q_rank is None else self.q_rank * (hidden_size + queries)
        kv = hidden_size * (self.kv_rank + self.rotary_head_size) + self.kv_rank * keys
        return q + kv + num_heads * self.value_head_size * hidden_size
