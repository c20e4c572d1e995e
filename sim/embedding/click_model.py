"""Models that predict clicks from numbers and embedding vectors: their sizes, and their forward pass as plan functions.

DLRM (Naumov et al. 2019), Wide & Deep (Cheng et al. 2016), DeepFM (Guo et al. 2017), Deep & Cross (Wang et al. 2017).
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from sim.plan.functions.basic import add, elementwise
from sim.plan.functions.click_models import cross, dot_interaction, factorization, features
from sim.plan.functions.linear import PLAIN, Products, linear
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.layout import REPLICATED

ClickModelName = Literal["dlrm", "wide_deep", "deepfm", "dcn"]

WITH_FIRST_ORDER: Final[frozenset[ClickModelName]] = frozenset({"wide_deep", "deepfm"})
"""Models that add a weight of each row to the logit: the last element of the row."""
OF_INPUTS: Final = Products(input_gradient=False)


class ClickModel(Struct, frozen=True, kw_only=True):
    """A model over T vectors of ``embedding_dim`` elements and ``num_numbers`` numbers.

    ``bottom``: widths of DLRM's network over numbers, to which one of ``embedding_dim`` is added. ``hidden``: widths of
    the layers before the last one, which makes the logit. ``num_cross_layers``: of Deep & Cross.
    """

    name: ClickModelName
    embedding_dim: int
    num_numbers: int = 13
    bottom: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    num_cross_layers: int = 3

    @property
    def row_elements(self) -> int:
        """Return the elements of a row: those of its vector, and the row's weight in a model that has one."""
        return self.embedding_dim + (self.name in WITH_FIRST_ORDER)


def forward(t: TaskTracer, model: ClickModel, numbers: Tensor, vectors: Tensor) -> Tensor:
    """Return the logits [b, 1] of samples with numbers [b, n] and vectors [b, T, row elements]."""
    if model.name == "dlrm":
        x = _layers(t, "bottom", numbers, (*model.bottom, model.embedding_dim), last=True, first=OF_INPUTS)
        return _layers(t, "top", dot_interaction(t, "interaction", x, vectors), (*model.hidden, 1), last=False)
    x = features(t, "features", numbers, vectors, model.embedding_dim)
    if model.name == "dcn":
        crossed = _crossed(t, model, x)
        deep = _layers(t, "deep", x, model.hidden, last=True)
        logits = [_layer(t, name, part, 1) for name, part in (("of_crossed", crossed), ("of_deep", deep))]
        return add(t, "logits", *logits)
    deep = _layers(t, "deep", x, (*model.hidden, 1), last=False)
    return add(t, "logits", deep, factorization(t, "factorization", vectors, pairs=model.name == "deepfm"))


def _crossed(t: TaskTracer, model: ClickModel, x: Tensor) -> Tensor:
    """Return the output of a cross network."""
    x0 = x
    for index in range(model.num_cross_layers):
        name = f"cross.{index}"
        weight = t.program.parameter(f"{name}.weight", (x0.shape[1], 1), REPLICATED, "normal", _scale(x0.shape[1]))
        bias = t.program.parameter(f"{name}.bias", (x0.shape[1],), REPLICATED, "zeros")
        x = cross(t, name, x0, linear(t, f"{name}.product", x, weight), bias, x)
    return x


def _layers(
    t: TaskTracer, name: str, x: Tensor, widths: Sequence[int], *, last: bool, first: Products = PLAIN
) -> Tensor:
    """Return the output of layers of these widths with ReLU between them, and after the ``last`` one.

    ``first``: the products of the first layer.
    """
    for index, width in enumerate(widths):
        x = _layer(t, f"{name}.{index}", x, width, PLAIN if index else first)
        if last or index < len(widths) - 1:
            x = elementwise(t, f"{name}.{index}.relu", "relu", x)
    return x


def _layer(t: TaskTracer, name: str, x: Tensor, width: int, products: Products = PLAIN) -> Tensor:
    """Return x times a weight, plus a bias."""
    weight = t.program.parameter(f"{name}.weight", (x.shape[1], width), REPLICATED, "normal", _scale(x.shape[1]))
    bias = t.program.parameter(f"{name}.bias", (width,), REPLICATED, "zeros")
    return linear(t, name, x, weight, bias, products=products)


def _scale(num_inputs: int) -> float:
    """Return the deviation of a layer's initial weights, by which its outputs are as large as its inputs."""
    return float(num_inputs**-0.5)
