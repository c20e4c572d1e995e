"""Batch, numbers and optimizer: typed, checked input."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from sim.training.errors import SpecError
from sim.training.pipeline.spec import Recompute, RecomputeMethod
from sim.training.spec.method import LocalUpdate, Method
from sim.training.spec.precision import PRECISIONS, PrecisionTypes

Precision = Literal["fp8", "fp16", "bf16", "fp32", "fp64"]
Optimizer = Literal["adam", "sgd"]


class TrainingSpec(Struct, frozen=True, kw_only=True):
    """Batch, numbers and optimizer."""

    global_batch_size: int
    microbatch_size: int
    precision: Precision = "bf16"
    recompute: Recompute = "none"
    recompute_num_layers: int | None = None
    """Recompute full: layers of every virtual stage that are, or are together; see ``RecomputeMethod``. None: all."""
    recompute_method: RecomputeMethod | None = None
    """None: left out, which is ``block``."""
    recompute_layers: tuple[int, ...] | None = None
    """Recompute full: the layers of the model that are recomputed; None: see ``recompute_num_layers``."""
    checkpoint_early_stop: bool = False
    """Recomputation ends where backward needs no more, as torch's does; else it runs to the end, as Megatron-LM's."""
    optimizer: Optimizer = "adam"
    """``sgd``: plain, without momentum."""
    learning_rate: float = 1e-3
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_epsilon: float = 1e-8
    fused_gradient_accumulation: bool = True
    """Weight-gradient products add to the accumulated gradient themselves; else a second kernel does."""
    gradient_placeholders: bool = False
    """Where gradients are accumulated so, backward still hands autograd tensors of the weights' shapes."""
    low_precision_gradients: bool = False
    """Accumulate and synchronise gradients in the type of the weights, not in 32 bits."""
    set_gradients_to_none: bool = False
    """No gradient is cleared before a step: the first backward that would add to one assigns it."""
    whole_embedding_gradient: bool = False
    """Backward makes the gradient of the whole embedding, and a second kernel adds it, as under autograd."""
    prescale_gradients: bool = False
    """Gradients are means over replicas, each divided before they are summed; else the loss is divided."""
    check_gradients: bool = False
    """The squares of all gradients are summed before these are, to find out whether one is no number."""
    method: Method = "backprop"
    local_update: LocalUpdate | None = None
    """Local updates: whether a block also learns from the next one's loss. None: left out, which is greedy."""

    def __post_init__(self) -> None:
        if self.recompute_method is not None and self.recompute_num_layers is None:
            raise SpecError(
                "training.recompute_method",
                "it says how a number of layers is recomputed, and none is given",
                "leave it out, or write training.recompute_num_layers",
            )
        if self.recompute_layers is not None and self.recompute_num_layers is not None:
            rule = "the recomputed layers are named, and their number in every stage is given as well"
            raise SpecError("training.recompute_layers", rule, "leave one of them out")
        if self.gradient_placeholders and not self.fused_gradient_accumulation:
            raise SpecError(
                "training.gradient_placeholders",
                "placeholders belong to fused accumulation, and here a second kernel adds them",
                "leave it out, or fused_gradient_accumulation: true",
            )
        if self.set_gradients_to_none and self.types.gradient != self.types.parameter:
            raise SpecError(
                "training.set_gradients_to_none",
                f"a gradient that backward assigns has its weight's type, {self.types.parameter}, and here it is "
                f"accumulated in {self.types.gradient}",
                "leave it out, or low_precision_gradients: true",
            )

    @property
    def recompute_chosen(self) -> RecomputeMethod | None:
        """Return how a number of layers of a stage is recomputed; None: no number is given."""
        return None if self.recompute_num_layers is None else self.recompute_method or "block"

    @property
    def update(self) -> LocalUpdate:
        """Return the kind of local updates."""
        return self.local_update or "greedy"

    @property
    def optimizer_numbers(self) -> Mapping[str, float]:
        """Return the optimizer's constants, as attributes of its kernel."""
        if self.optimizer == "sgd":
            return {"learning_rate": self.learning_rate}
        return {
            "learning_rate": self.learning_rate,
            "beta1": self.adam_beta1,
            "beta2": self.adam_beta2,
            "epsilon": self.adam_epsilon,
        }

    @property
    def types(self) -> PrecisionTypes:
        """Return the element types of this precision."""
        types = PRECISIONS[self.precision]
        return replace(types, gradient=types.parameter) if self.low_precision_gradients else types
