"""The kernels of a layer on one rank, attention to other tokens left out: norms, projections, MLP, experts."""

from collections.abc import Sequence

from msgspec import Struct

from costmodels.kernels.tensor import TensorSpec
from sim.serving.prices.attention import Attention
from sim.serving.prices.calls import WIDE, KernelCall, call, grouped_product, norm, product
from sim.serving.prices.layout import ReplicaLayout
from sim.serving.prices.model import ServedExperts, ServedModel


class LayerCalls(Struct, frozen=True):
    """The calls of one layer by parts. All but experts' see the tokens of a group alone."""

    model: ServedModel
    layout: ReplicaLayout
    attention: Attention
    weight_dtype: str

    def common(self, tokens: int) -> Sequence[KernelCall]:
        """Return what every layer does with each token: norms, residuals, the projections of attention."""
        hidden = TensorSpec((tokens, 1, self.model.hidden_size), WIDE)
        return [
            norm(tokens, self.model.hidden_size, count=2),
            call("add", (hidden, hidden), count=2),
            *self.attention.projections(tokens),
        ]

    def mlp(self, tokens: int) -> Sequence[KernelCall]:
        """Return the MLP of a layer without experts."""
        return self._mlp(tokens, self.model.ffn_hidden_size)

    def beside_experts(self, tokens: int) -> Sequence[KernelCall]:
        """Return the router and the experts that every token goes to."""
        of = self._experts
        shared = self._mlp(tokens, of.shared_ffn_hidden_size) if of.shared_ffn_hidden_size else []
        return [product(tokens, self.model.hidden_size, of.num_experts, WIDE), *shared]

    def experts(self, tokens: int) -> Sequence[KernelCall]:
        """Return grouped products over a rank's share of the experts that the tokens of all groups touch."""
        model, of = self.model, self._experts
        everywhere = max(1, round(of.touched(tokens)))
        rows, width = -(-tokens * of.top_k // everywhere), -(-of.ffn_hidden_size // self.layout.tensor_degree)
        touched = -(-everywhere // self.layout.expert_degree)
        return [
            grouped_product(touched, rows, model.hidden_size, 2 * width, self.weight_dtype),
            call("swiglu", (TensorSpec((touched * rows, 1, 2, width), WIDE),)),
            grouped_product(touched, rows, width, model.hidden_size, self.weight_dtype),
        ]

    def head(self, rows: int) -> Sequence[KernelCall]:
        """Return the output layer, of which every rank of a group has a part."""
        return [product(rows, self.model.hidden_size, -(-self.model.vocab_size // self.layout.tensor_degree), WIDE)]

    def square(self, rows: int) -> Sequence[KernelCall]:
        """Return a product with a square matrix of the hidden size, of which every rank has all."""
        return [product(rows, self.model.hidden_size, self.model.hidden_size, WIDE)]

    @property
    def _experts(self) -> ServedExperts:
        assert self.model.experts is not None, "only layers of experts ask for their calls"
        return self.model.experts

    def _mlp(self, tokens: int, whole_width: int) -> Sequence[KernelCall]:
        """Return the calls of an MLP of this width over all ranks."""
        model, width = self.model, -(-whole_width // self.layout.tensor_degree)
        kernel, shape = ("swiglu", (tokens, 1, 2, width)) if model.gated else ("gelu", (tokens, 1, 1, width))
        return [
            product(tokens, model.hidden_size, shape[2] * width, self.weight_dtype),
            call(kernel, (TensorSpec(shape, WIDE),)),
            product(tokens, width, model.hidden_size, self.weight_dtype),
        ]
