"""The forward pass of a decoder-only transformer, over a mesh with axes ``pp``, ``dp`` and ``tp``.

Activations are [sequence, batch, hidden]; the batch dimension is sharded over ``dp``. With sequence
parallelism the residual stream is sharded over ``tp`` along the sequence (Korthikanti et al. 2022), else
replicated (Shoeybi et al. 2019). Parameter names are those of the dense model.
"""

from dataclasses import replace
from typing import NamedTuple

from sim.plan.functions import basic as f
from sim.plan.functions.linear import Products
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.layout import REPLICATED
from sim.training.layers.attention import attention
from sim.training.layers.experts import expert_mlp
from sim.training.layers.layer import LayerBuilder
from sim.training.layers.mlp import mlp
from sim.training.spec.mesh_axes import DATA_AXIS


class HeadNames(NamedTuple):
    """What the parameters and ops of a head are called; ``shared``: a table of others that it uses, if any."""

    norm: str
    head: str
    loss: str
    labels: str
    shared: str = ""


class TransformerBuilder(LayerBuilder):
    """Writes the stages of one model under one strategy: embedding, layers and head."""

    __slots__ = ()

    # --- pieces --------------------------------------------------------------------------------------------

    def embed(self, t: TaskTracer) -> Tensor:
        """Return the embedded tokens of one micro-batch."""
        m = self.model
        ids, table = self.tokens(t, "tokens", shift=0), self.word_table(t, "embedding.word")
        x = f.embedding(t, "embedding", ids, table, whole_gradient=self.whole_embedding_gradient)
        x = self.row_output(t, x)
        if m.family == "gpt":
            positions = t.program.parameter(
                "embedding.position", (m.sequence_length, m.hidden_size), REPLICATED, "normal"
            )
            x = f.add_positions(t, "positions", x, positions, self.rows)
        return f.dropout(t, "embedding", x, m.dropout, batch_dim=1, spans=self._spans)

    def tokens(self, t: TaskTracer, name: str, *, shift: int) -> Tensor:
        """Return this rank's token ids (``shift`` 0) or labels (``shift`` 1)."""
        m = self.model
        return f.tokens(
            t, name, shift=shift, rows=self.rows, batch=self.microbatch_size, vocabulary=m.vocab_size,
            axes=(DATA_AXIS,),
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
            return self.checkpointed(t, lambda tracer, inputs: self._layer(tracer, index, inputs[0]), (x,))
        return self._layer(t, index, x)

    # --- one layer -----------------------------------------------------------------------------------------

    def _layer(self, t: TaskTracer, index: int, x: Tensor) -> Tensor:
        name = f"layer{index}"
        y = attention(self, t, name, self.norm(t, f"{name}.norm1", x))
        x = self._residual(t, f"{name}.attention_out", y, f"{name}.projection.bias", x)
        normed = self.norm(t, f"{name}.norm2", x)
        if self.model.has_experts(index):
            y = expert_mlp(self, t, name, normed)
            y = f.dropout(t, f"{name}.mlp_out", y, self.model.dropout, batch_dim=1, spans=self._spans)
            return f.add(t, f"{name}.mlp_out", y, x)
        return self._residual(t, f"{name}.mlp_out", mlp(self, t, name, normed), f"{name}.fc2.bias", x)

    def _residual(self, t: TaskTracer, name: str, y: Tensor, bias_source: str, residual: Tensor) -> Tensor:
        if not self.biased:
            return f.add(t, name, y, residual)
        bias = t.program.parameter(bias_source, (self.model.hidden_size,), REPLICATED, "zeros")
        return f.bias_dropout_add(t, name, y, bias, residual, self.model.dropout, batch_dim=1, spans=self._spans)

    @property
    def _spans(self) -> f.Spans:
        """Return which part of a whole [sequence, batch, hidden] a task has."""
        return {0: self.rows} if self.part or self.shared else {}
