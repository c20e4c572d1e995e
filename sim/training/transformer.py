"""The forward pass of a decoder-only transformer, over a mesh with axes ``pp``, ``dp`` and ``tp``.

Activations are [sequence, batch, hidden]; the batch dimension is sharded over ``dp``. With sequence
parallelism the residual stream is sharded over ``tp`` along the sequence (Korthikanti et al. 2022), else
replicated (Shoeybi et al. 2019). Parameter names are those of the dense model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sim.plan import functions as f
from sim.plan import token_slices as sliced
from sim.plan.buffer import Part
from sim.plan.gradients import checkpoint
from sim.plan.layout import REPLICATED, Layout, sharded
from sim.plan.linear import Products, linear
from sim.plan.split_linear import split_linear
from sim.plan.token_slices import TokenSlice
from sim.plan.tracing import Parameter, TaskTracer, Tensor
from sim.training.model import TransformerSpec
from sim.training.pipeline.spec import Recompute

TENSOR_AXIS = "tp"
DATA_AXIS = "dp"


class HeadNames(NamedTuple):
    """What the parameters and ops of a head are called; ``shared``: a table of others that it uses, if any."""

    norm: str
    head: str
    loss: str
    labels: str
    shared: str = ""


@dataclass(frozen=True, slots=True)
class TransformerBuilder:
    """Writes the stages of one model under one strategy.

    ``slices``: into how many parts the weight of a linear layer, by name, is split along its input; one if left out.
    ``part``: the tokens of every sequence that are computed; None: all. ``products``: how the layers' are made.
    """

    model: TransformerSpec
    microbatch_size: int
    tensor_parallel: bool
    sequence_parallel: bool
    recompute: Recompute
    loss_scale: float
    products: Products
    slices: Mapping[str, int] = field(default_factory=dict)
    part: TokenSlice | None = None

    @property
    def num_tokens(self) -> int:
        """Return how many tokens of a sequence a task computes."""
        return self.part.num_tokens if self.part else self.model.sequence_length

    # --- pieces --------------------------------------------------------------------------------------------

    def embed(self, t: TaskTracer) -> Tensor:
        """Return the embedded tokens of one micro-batch."""
        m = self.model
        x = f.embedding(t, "embedding", self.tokens(t, "tokens", shift=0), self.word_table(t, "embedding.word"))
        x = self.row_output(t, x)
        if m.family == "gpt":
            positions = t.program.parameter(
                "embedding.position", (m.sequence_length, m.hidden_size), REPLICATED, "normal"
            )
            x = f.add_positions(t, "positions", x, positions, self._start)
        return f.dropout(t, "embedding", x, m.dropout, batch_dim=1, spans=self._spans)

    def tokens(self, t: TaskTracer, name: str, *, shift: int) -> Tensor:
        """Return this rank's token ids (``shift`` 0) or labels (``shift`` 1)."""
        m = self.model
        return f.tokens(
            t, name, shift=self._start + shift, sequence=self.num_tokens, batch=self.microbatch_size,
            vocabulary=m.vocab_size, axes=(DATA_AXIS,),
        )  # fmt: skip

    def word_table(self, t: TaskTracer, source: str) -> Parameter:
        """Return the vocabulary table [V, h], sharded by rows."""
        return t.program.parameter(source, (self.model.vocab_size, self.model.hidden_size), self.shard(0), "normal")

    def head(self, t: TaskTracer, x: Tensor, loss: Tensor) -> Tensor:
        """Add the micro-batch's share of the mean loss to ``loss``."""
        shared = "embedding.word" if self.model.tied_embeddings else ""
        return self.read_out(t, x, loss, HeadNames("final_norm", "head", "loss", "labels", shared))

    def read_out(self, t: TaskTracer, x: Tensor, loss: Tensor, names: HeadNames) -> Tensor:
        """Add a micro-batch's share of the mean loss of a head, a norm and a vocabulary projection, to ``loss``."""
        x = self.column_input(t, self.norm(t, names.norm, x))
        shape = (self.model.vocab_size, self.model.hidden_size)
        own = [] if names.shared else self.weights(t, names.head, shape, self.shard(0), dim=1)
        head = self
        if self.products.weight_gradient.placeholder == "kept":
            fresh = replace(self.products.weight_gradient, placeholder="fresh")
            head = replace(self, products=Products(fresh))
        logits = head.linear(t, names.head, x, own or [self.word_table(t, names.shared)], transposed=True)
        return f.cross_entropy(t, names.loss, logits, self.tokens(t, names.labels, shift=1), loss, self.loss_scale)

    def layer(self, t: TaskTracer, index: int, x: Tensor) -> Tensor:
        """Return one layer's output, recomputed in backward where ``recompute`` is full."""
        if self.recompute == "full":
            return checkpoint(t, lambda tracer, inputs: self._layer(tracer, index, inputs[0]), (x,))
        return self._layer(t, index, x)

    # --- one layer -----------------------------------------------------------------------------------------

    def _layer(self, t: TaskTracer, index: int, x: Tensor) -> Tensor:
        name = f"layer{index}"
        y = self._attention(t, name, self.column_input(t, self.norm(t, f"{name}.norm1", x)))
        x = self._residual(t, f"{name}.attention_out", y, f"{name}.projection.bias", x)
        y = self._mlp(t, name, self.column_input(t, self.norm(t, f"{name}.norm2", x)))
        return self._residual(t, f"{name}.mlp_out", y, f"{name}.fc2.bias", x)

    def _attention(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        m = self.model
        groups, per_group = m.num_kv_heads, m.num_heads // m.num_kv_heads
        shape = (groups, per_group + 2, m.head_size)
        weight = self.weights(t, f"{name}.qkv", (m.hidden_size, *shape), self.shard(1))
        bias = t.program.parameter(f"{name}.qkv.bias", shape, self.shard(0), "zeros") if self._biased else None
        q, k, v = f.split_qkv(t, f"{name}.qkv", self.product(t, f"{name}.qkv", x, weight, bias))
        if m.family == "llama":
            q = f.rotary(t, f"{name}.rotary_q", q, m.rotary_base, self._start)
            k = f.rotary(t, f"{name}.rotary_k", k, m.rotary_base, self._start)
        if self.part:
            k = sliced.append(t, f"{name}.keys", k, self.part)
            v = sliced.append(t, f"{name}.values", v, self.part)
        y = self._attend(t, f"{name}.attention", (q, k, v))
        output = self.weights(t, f"{name}.projection", (m.num_heads, m.head_size, m.hidden_size), self.shard(0))
        return self.row_output(t, self.product(t, f"{name}.projection", y, output, contract=2))

    def _attend(self, t: TaskTracer, name: str, qkv: Sequence[Tensor]) -> Tensor:
        def attend(tracer: TaskTracer, inputs: Sequence[Tensor]) -> Tensor:
            flash, dropout = self.model.attention == "flash", self.model.dropout
            if self.part and flash:
                return sliced.flash_attention(tracer, name, inputs, self.part)
            if self.part:
                return sliced.core_attention(tracer, name, inputs, dropout, self.part)
            q, k, v = inputs
            if flash:
                return f.flash_attention(tracer, name, q, k, v)
            return f.core_attention(tracer, name, q, k, v, dropout)

        return checkpoint(t, attend, qkv) if self.recompute == "selective" else attend(t, qkv)

    def _mlp(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        m = self.model
        h, ffn = m.hidden_size, m.ffn_hidden_size
        if m.family == "gpt":
            weight = self.weights(t, f"{name}.fc1", (h, ffn), self.shard(1))
            bias = t.program.parameter(f"{name}.fc1.bias", (ffn,), self.shard(0), "zeros")
            y = f.elementwise(t, f"{name}.gelu", "gelu", self.product(t, f"{name}.fc1", x, weight, bias))
        else:
            weight = self.weights(t, f"{name}.fc1", (h, 2, ffn), self.shard(2))
            y = f.elementwise(t, f"{name}.swiglu", "swiglu", self.product(t, f"{name}.fc1", x, weight))
        output = self.weights(t, f"{name}.fc2", (ffn, h), self.shard(0))
        return self.row_output(t, self.product(t, f"{name}.fc2", y, output))

    def _residual(self, t: TaskTracer, name: str, y: Tensor, bias_source: str, residual: Tensor) -> Tensor:
        if not self._biased:
            return f.add(t, name, y, residual)
        bias = t.program.parameter(bias_source, (self.model.hidden_size,), REPLICATED, "zeros")
        return f.bias_dropout_add(t, name, y, bias, residual, self.model.dropout, batch_dim=1, spans=self._spans)

    def weights(
        self, t: TaskTracer, name: str, shape: tuple[int, ...], layout: Layout, *, dim: int = 0
    ) -> list[Parameter]:
        """Return the weight of a linear layer, in parts along its input dimension where it is split."""
        count = self.slices.get(name, 1)
        parts = [Part(dim, index, count) for index in range(count)] if count > 1 else [None]
        return [t.program.parameter(f"{name}.weight", shape, layout, "normal", part=part) for part in parts]

    def product(
        self,
        t: TaskTracer,
        name: str,
        x: Tensor,
        weights: Sequence[Parameter],
        bias: Parameter | None = None,
        contract: int = 1,
    ) -> Tensor:
        """Return a layer's product with a weight, of operands as this strategy wants them."""
        if len(weights) > 1:
            return self.linear(t, name, x, weights, bias, contract=contract)
        return linear(t, name, x, weights[0], bias, contract=contract, products=self.products)

    def linear(
        self,
        t: TaskTracer,
        name: str,
        x: Tensor,
        weights: Sequence[Parameter],
        bias: Parameter | None = None,
        **attributes: Any,
    ) -> Tensor:
        """Return a product with a weight, or its parts, whose gradient is computed as this strategy wants it."""
        if len(weights) > 1:
            weight_gradient = self.products.weight_gradient
            return split_linear(t, name, x, weights, bias, weight_gradient=weight_gradient, **attributes)
        return linear(t, name, x, weights[0], bias, products=Products(self.products.weight_gradient), **attributes)

    def norm(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        """Return the family's norm of x."""
        h = (self.model.hidden_size,)
        weight = t.program.parameter(f"{name}.weight", h, REPLICATED, "ones")
        if self.model.family == "llama":
            return f.rms_norm(t, name, x, weight)
        return f.layer_norm(t, name, x, weight, t.program.parameter(f"{name}.bias", h, REPLICATED, "zeros"))

    @property
    def _start(self) -> int:
        return self.part.start if self.part else 0

    @property
    def _spans(self) -> f.Spans:
        """Return which part of a whole [sequence, batch, hidden] a task has."""
        return {0: self.part.span} if self.part else {}

    # --- layouts -------------------------------------------------------------------------------------------

    @property
    def _biased(self) -> bool:
        return self.model.family == "gpt"

    def shard(self, dim: int) -> Layout:
        """Return the layout of a weight that tensor parallelism splits along ``dim``."""
        return sharded(dim, (TENSOR_AXIS,)) if self.tensor_parallel else REPLICATED

    def column_input(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return x whole on every rank, as a column-parallel product wants it."""
        return f.all_gather(t, x, TENSOR_AXIS, 0, regather=True) if self.sequence_parallel else x

    def row_output(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return the sum of a row-parallel product, as the residual stream lies."""
        if not self.tensor_parallel:
            return x
        return f.reduce_scatter(t, x, TENSOR_AXIS, 0) if self.sequence_parallel else f.all_reduce(t, x, TENSOR_AXIS)
