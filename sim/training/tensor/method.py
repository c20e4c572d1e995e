"""The interface of tensor-parallel methods.

A method spreads every layer over ``degree`` ranks. The builders of attention, MLPs, experts, pipelines and data
parallelism ask it for layouts and products, and never name one of its mesh axes.

Tensors are [sequence, batch, hidden]. A weight is [inputs, outputs]; either side may be several dimensions. A product
is column-parallel where it reads the residual stream (queries, keys, values; the first product of an MLP), and
row-parallel where it makes what is added to it (the projection of attention; the second product of an MLP).

The methods fill the interface like this, on t ranks, on q x q, on q x q x d and on p x p x p:

* 1D (Megatron-LM), axis ``tp``. ``residual``: replicated, or cut along the sequence. ``column_layout``: outputs over
  ``tp``; ``row_layout``: inputs over ``tp``. ``enter`` gathers, ``leave`` sums, ``multiply`` is local.
* 2D (Optimus), axes ``tp_row`` and ``tp_column``. ``residual``: batch over ``tp_row``, hidden over ``tp_column``.
  Weights: inputs over ``tp_row``, outputs over ``tp_column``; tables: words over ``tp_row``; norms, biases and
  positions: ``tp_column``. ``enter`` and ``leave`` do nothing. ``multiply`` is SUMMA.
* 2.5D (Tesseract), axis ``tp_depth`` before those of 2D: it shares out the batch too, and weights are replicated over
  it. Their gradients are summed over it in backward, or are born partial.
* 3D (Bian et al.), axes ``tp_output``, ``tp_input`` and ``tp_weight``. ``residual``: batch over ``tp_weight`` and
  ``tp_input``, hidden over ``tp_output``. ``column_layout``: inputs over ``tp_output`` and ``tp_weight``, outputs over
  ``tp_input``; ``row_layout``: input and output axes exchanged, so that the stream lies as before after two products.
  Logits lie as after one: ``loss_axes`` are others than ``sample_axes``.

Except in 1D no rank holds the whole residual stream, so ``boundary`` sends it as it lies. Gradients of norms and biases
are born partial over the axes that share out the batch, as these gradients sum over it, and data parallelism sums them
as it sums those of sequence parallelism. ``cross_entropy`` reads the axes that cut the words off the logits' layout.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from msgspec import Struct

from sim.abstract import AbstractStruct
from sim.plan.functions import basic as f
from sim.plan.functions.linear import Products
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.layout import Layout
from sim.plan.words.mesh import Axes
from sim.training.tensor.boundary import Boundary

Sizes = Mapping[str, int]
"""Sizes of a job by scenario key: ``model.num_heads``, ``training.microbatch_size``, ..."""
Overlap = Literal["none", "prefetch"]
"""Choices of 2D: its broadcasts run during products, or not."""
DepthSync = Literal["per_backward", "per_step"]
"""Choices of 2.5D: when the gradients of weights are summed over the squares."""


class Factor(Struct, frozen=True):
    """A weight as a product with it reads it.

    ``weights``: the weight, or its parts along its inputs. ``contract``: over how many dimensions of the input.
    ``transposed``: the weight is [outputs, inputs].
    """

    weights: Sequence[Parameter]
    bias: Parameter | None = None
    contract: int = 1
    transposed: bool = False


class TensorMethod(AbstractStruct, frozen=True, kw_only=True):
    """A tensor-parallel method with its degree and its options; immutable.

    ``OneDimensional(degree=8, sequence_parallel=True)`` is Megatron-LM's on 8 ranks. Of degree 1 it does nothing.
    """

    degree: int = 1
    """The number of ranks that hold a layer together."""

    name: ClassVar[str]
    """Its name in scenarios: ``parallel.tensor.method``."""

    # --- ranks and sizes -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def axes(self) -> Axes:
        """Return the method's mesh axes; the last varies fastest over ranks.

        Their names are ``tp``, or begin with ``tp_``: streams are named by axes, and the first word is the purpose.
        """

    @property
    def blocks(self) -> Axes:
        """Return the sides of the blocks of the mesh whose ranks follow each other; none: they follow the axes."""
        return ()

    @property
    def mesh_sides(self) -> tuple[int, ...]:
        """Return the ranks along each side of a mesh; none of a method whose degree says all."""
        return ()

    @property
    @abstractmethod
    def sample_axes(self) -> tuple[str, ...]:
        """Return the axes that share out the sequences of a micro-batch, where they are embedded."""

    @property
    def loss_axes(self) -> tuple[str, ...]:
        """Return the axes that share out the sequences of a micro-batch, where the loss is computed."""
        return self.sample_axes

    @abstractmethod
    def check(self, sizes: Sizes, *, scatters: bool) -> None:
        """Raise SpecError, with the nearest valid choice, if the ranks do not divide the sizes that they cut.

        ``scatters``: pipeline stages cut what they send, see ``boundary``.
        """

    def token_multiple(self, *, scatters: bool) -> int:
        """Return a divisor of the number of tokens of every task: 1, none are cut; ``scatters`` as in ``check``."""
        return 1

    # --- options that others ask for -----------------------------------------------------------------------

    @property
    def overlaps_backward(self) -> bool:
        """Return whether backward computes a weight's gradient while its input's gradient is communicated."""
        return True

    @property
    def cuts_residual(self) -> bool:
        """Return whether every rank holds another part of the residual stream."""
        return True

    @property
    def splits_products(self) -> bool:
        """Return whether products are made in pieces, beside the communication of the others (collective matmul)."""
        return False

    @property
    def option_of_recomputation(self) -> str:
        """Return the option that is used and has an effect on recomputed layers alone; empty: none is."""
        return ""

    # --- layouts -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def residual(self) -> Layout:
        """Return how the residual stream [s, b, h] lies over the method's axes."""

    @abstractmethod
    def column_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the layout of a column-parallel weight, given the dimensions of outputs and inputs to be cut."""

    @abstractmethod
    def row_layout(self, outputs: int, inputs: int = 0) -> Layout:
        """Return the layout of a row-parallel weight, given the dimensions of outputs and inputs to be cut."""

    @abstractmethod
    def column_bias_layout(self) -> Layout:
        """Return the layout of a column-parallel product's bias, cut along its first dimension."""

    @abstractmethod
    def hidden_layout(self, dim: int = 0) -> Layout:
        """Return the layout of a parameter whose ``dim`` is the hidden size: norms, positions, biases of the stream."""

    @property
    @abstractmethod
    def vocabulary_layout(self) -> Layout:
        """Return the layout of a table [vocabulary, hidden]: the embedding, or the output layer."""

    # --- products ------------------------------------------------------------------------------------------

    def enter(self, t: TaskTracer, x: Tensor, *, again: bool = True) -> Tensor:
        """Return a tensor of the residual stream as column-parallel products read it; here as it lies.

        ``again``: where it is gathered, keep the own part alone and gather in backward again.
        """
        return x

    def leave(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return the result of a row-parallel product in the layout of the residual stream; here as it lies."""
        return x

    def saved_for_recomputation(self, t: TaskTracer, x: Tensor) -> Tensor:
        """Return the input of a recomputed function as it is kept until backward; here as it lies."""
        return x

    @abstractmethod
    def multiply(self, t: TaskTracer, name: str, x: Tensor, factor: Factor, products: Products) -> Tensor:
        """Return the product of an entered x with a weight, before it leaves.

        ``products``: the element types of its kernels.
        """

    def column(
        self,
        t: TaskTracer,
        name: str,
        x: Tensor,
        weights: Sequence[Parameter],
        bias: Parameter | None = None,
        *,
        products: Products,
    ) -> Tensor:
        """Return the column-parallel product of x, which lies as the residual stream."""
        return self.multiply(t, name, self.enter(t, x), Factor(weights, bias), products)

    def row(
        self,
        t: TaskTracer,
        name: str,
        x: Tensor,
        weights: Sequence[Parameter],
        *,
        contract: int = 1,
        products: Products,
    ) -> Tensor:
        """Return the row-parallel product of x as the residual stream lies."""
        return self.leave(t, self.multiply(t, name, x, Factor(weights, contract=contract), products))

    # --- norms and the ends of the model -------------------------------------------------------------------

    def norm(self, t: TaskTracer, name: str, x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
        """Return layer norm of x over its last dimension, or RMS norm where there is no bias."""
        return f.rms_norm(t, name, x, weight) if bias is None else f.layer_norm(t, name, x, weight, bias)

    def embed(self, t: TaskTracer, name: str, ids: Tensor, table: Parameter, *, whole_gradient: bool = False) -> Tensor:
        """Return the rows of a table that tokens name, as the residual stream lies."""
        return self.leave(t, f.embedding(t, name, ids, table, whole_gradient=whole_gradient))

    def logits(self, t: TaskTracer, name: str, x: Tensor, tables: Sequence[Parameter], *, products: Products) -> Tensor:
        """Return the logits of an entered x, cut as the vocabulary is."""
        return self.multiply(t, name, x, Factor(tables, transposed=True), products)

    def cross_entropy(
        self, t: TaskTracer, name: str, logits: Tensor, labels: Tensor, loss: Tensor, scale: float
    ) -> Tensor:
        """Return the loss with ``scale`` times the cross entropy of some tokens added; logits are not gathered."""
        return f.cross_entropy(t, name, logits, labels, loss, scale)

    # --- pipelines -----------------------------------------------------------------------------------------

    def boundary(self, *, scatters: bool) -> Boundary:
        """Return the form in which the residual stream goes from one pipeline stage to the next; here as it lies.

        ``scatters``: what every rank holds whole is cut before it is sent.
        """
        return Boundary(self.residual)
