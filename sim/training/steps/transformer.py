"""The forward pass of a decoder-only transformer.

Activations are [sequence, batch, hidden]; the batch dimension is sharded over ``dp``. How they and the weights lie
over the tensor-parallel ranks, the method of tensor parallelism says. Parameter names are those of the dense model.
"""

from collections.abc import Sequence
from functools import partial
from math import sqrt

from msgspec import Struct, field
from msgspec.structs import replace

from sim.plan.functions import basic as f
from sim.plan.functions.linear import Products
from sim.plan.functions.repeated import Repeated
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.training.layers import experts
from sim.training.layers.attention import attention
from sim.training.layers.layer import LayerBuilder
from sim.training.layers.mlp import mlp
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS


class HeadNames(Struct, frozen=True):
    """The names of a head's parameters and ops; ``shared``: a table of another layer that it uses, if any."""

    norm: str
    head: str
    loss: str
    labels: str
    shared: str = ""


class TransformerBuilder(LayerBuilder, frozen=True):
    """Writes the stages of one model under one strategy: embedding, layers and head.

    ``repeated``: writes the layers, of each kind the first op by op.
    """

    repeated: Repeated = field(default_factory=Repeated)

    # --- pieces --------------------------------------------------------------------------------------------

    def embed(self, t: TaskTracer) -> Tensor:
        """Return the embedded tokens of one micro-batch."""
        return self.embedded(t, self.tokens(t, "tokens", self.tensor.sample_axes, shift=0))

    def embedded(self, t: TaskTracer, ids: Tensor) -> Tensor:
        """Return the input of the first layer for these tokens."""
        m = self.model
        table = self.word_table(t, "embedding.word")
        x = self.tensor.embed(t, "embedding", ids, table, whole_gradient=self.whole_embedding_gradient)
        if m.scaled_embeddings:
            x = f.scaled(t, "embedding.scaled", x, sqrt(m.hidden_size))
        if m.family == "gpt":
            shape, layout = (m.sequence_length, m.hidden_size), self.tensor.hidden_layout(1)
            positions = t.program.parameter("embedding.position", shape, layout, "normal")
            x = f.add_positions(t, "positions", x, positions, self.rows)
        return f.dropout(t, "embedding", x, m.dropout, batch_dim=1, spans=self._spans)

    def tokens(self, t: TaskTracer, name: str, axes: Sequence[str], *, shift: int) -> Tensor:
        """Return this rank's token ids (``shift`` 0) or labels (``shift`` 1).

        ``axes``: those of tensor parallelism that share out the sequences of a micro-batch.
        """
        return f.tokens(
            t, name, shift=shift, rows=self.rows, batch=self.microbatch_size // t.mesh.degree(*axes),
            vocabulary=self.model.vocab_size, axes=(DATA_AXIS, *axes),
        )  # fmt: skip

    def word_table(self, t: TaskTracer, source: str) -> Parameter:
        """Return the vocabulary table [V, h], sharded as the tensor-parallel method has it."""
        shape = (self.model.vocab_size, self.model.hidden_size)
        return t.program.parameter(source, shape, self.tensor.vocabulary_layout, "normal")

    def head(self, t: TaskTracer, x: Tensor, loss: Tensor) -> Tensor:
        """Add the micro-batch's share of the mean loss to ``loss``."""
        return self.read_out(t, x, loss, self.head_names)

    @property
    def head_names(self) -> HeadNames:
        """Return the names of the model's own head."""
        shared = "embedding.word" if self.model.tied_embeddings else ""
        return HeadNames("final_norm", "head", "loss", "labels", shared)

    def read_out(self, t: TaskTracer, x: Tensor, loss: Tensor, names: HeadNames) -> Tensor:
        """Add a micro-batch's share of the mean loss of a head, a norm and a vocabulary projection, to ``loss``."""
        logits = self.logits(t, x, names)
        labels = self.tokens(t, names.labels, self.tensor.loss_axes, shift=1)
        return self.tensor.cross_entropy(t, names.loss, logits, labels, loss, self.loss_scale)

    def logits(self, t: TaskTracer, x: Tensor, names: HeadNames) -> Tensor:
        """Return a head's logits of the last layer's output, cut as the vocabulary is."""
        x = self.tensor.enter(t, self.norm(t, names.norm, x))
        shape = (self.model.vocab_size, self.model.hidden_size)
        own = [] if names.shared else self.weights(t, names.head, shape, self.tensor.vocabulary_layout, dim=1)
        tables = own or [self.word_table(t, names.shared)]
        logits = self.tensor.logits(t, names.head, x, tables, products=self._head_products)
        if self.model.logit_cap:
            logits = f.elementwise(t, f"{names.head}.soft_cap", "soft_cap", logits, cap=self.model.logit_cap)
        return logits

    @property
    def _head_products(self) -> Products:
        """Return how a head multiplies: without casts, and with no placeholder that outlives its backward."""
        gradient = self.products.weight_gradient
        return Products(replace(gradient, placeholder="fresh") if gradient.placeholder == "kept" else gradient)

    def layers(self, t: TaskTracer, indices: Sequence[int], x: Tensor) -> Tensor:
        """Return the output of a stage's layers, recomputed in backward where ``recompute`` is full."""
        size = self.recompute_num_layers or 1 if self.recompute_method == "uniform" else 1
        for begin in range(0, len(indices), size):
            together = tuple(indices[begin : begin + size])
            if self._recomputes(begin, indices[begin]):
                x = self.tensor.saved_for_recomputation(t, x)
                x = self.checkpointed(t, partial(self._several, together), (x,))
            else:
                x = self._several(together, t, (x,))
        return x

    def _recomputes(self, place: int, index: int) -> bool:
        """Return whether a layer is recomputed whole; ``place``: in its stage, ``index``: in the model."""
        count = self.recompute_num_layers
        if self.recompute_layers is not None:
            return self.recompute == "full" and index in self.recompute_layers
        return self.recompute == "full" and (count is None or self.recompute_method == "uniform" or place < count)

    def _several(self, indices: Sequence[int], t: TaskTracer, inputs: Sequence[Tensor]) -> Tensor:
        (x,) = inputs
        for index in indices:
            if self._has_copies(index):
                kind = self.model.kind_of(index), self.recompute
                x = self.repeated(t, f"layer{index}", kind, partial(self._layer, index), x)
            else:
                x = self._layer(index, t, x)
        return x

    def _has_copies(self, index: int) -> bool:
        """Return whether layers of a layer's kind write the same but for names.

        Layers with experts may be routed unlike others, operators may have choices of their own by name, and caches of
        other parts of the tokens are there or not.
        """
        return self.part is None and not self.slices and not self.model.kind_of(index).has_experts

    # --- one layer -----------------------------------------------------------------------------------------

    def _layer(self, index: int, t: TaskTracer, x: Tensor) -> Tensor:
        name = f"layer{index}"
        y = self._post_norm(t, f"{name}.post_norm1", attention(self, t, index, self.norm(t, f"{name}.norm1", x)))
        x = self._residual(t, f"{name}.attention_out", y, f"{name}.projection.bias", x)
        normed = self.norm(t, f"{name}.norm2", x)
        if self.model.kind_of(index).has_experts:
            y = self._post_norm(t, f"{name}.post_norm2", experts.expert_mlp(self, t, index, normed))
            y = f.dropout(t, f"{name}.mlp_out", y, self.model.dropout, batch_dim=1, spans=self._spans)
            return f.add(t, f"{name}.mlp_out", y, x)
        y = self._post_norm(t, f"{name}.post_norm2", mlp(self, t, name, normed))
        return self._residual(t, f"{name}.mlp_out", y, f"{name}.fc2.bias", x)

    def _post_norm(self, t: TaskTracer, name: str, y: Tensor) -> Tensor:
        return self.norm(t, name, y) if self.model.post_norms else y

    def _residual(self, t: TaskTracer, name: str, y: Tensor, bias_source: str, residual: Tensor) -> Tensor:
        if not self.biased:
            return f.add(t, name, y, residual)
        bias = t.program.parameter(bias_source, (self.model.hidden_size,), self.tensor.hidden_layout(), "zeros")
        return f.bias_dropout_add(t, name, y, bias, residual, self.model.dropout, batch_dim=1, spans=self._spans)

    @property
    def _spans(self) -> f.Spans:
        """Return which part of a whole [sequence, batch, hidden] a task has, where its layout does not say it."""
        return {0: self.rows} if self.part or self.rows.dealt_over else {}
