"""The training method: backpropagation through the model, or local updates. Typed, checked input."""

from typing import Final, Literal

from sim.training.errors import SpecError
from sim.training.pipeline.spec import PipelineSpec

Method = Literal["backprop", "local"]
LocalUpdate = Literal["greedy", "overlapping"]

LOCAL_SCHEDULE: Final = "local"
"""The order of local updates: every block's forward, head and backward of a micro-batch one after the other."""


def check_method(method: Method, update: LocalUpdate | None, pipeline: PipelineSpec) -> None:
    """Raise SpecError where method, its option and schedule do not go together."""
    if method == "backprop":
        if pipeline.schedule == LOCAL_SCHEDULE:
            rule = "local is the order of local updates, and training.method is backprop"
            raise SpecError("parallel.pipeline.schedule", rule, "write training.method: local, or another schedule")
        if update is not None:
            rule = "it is an option of method: local, and training.method is backprop"
            raise SpecError("training.local_update", rule, "leave it out, or write training.method: local")
        return
    if pipeline.schedule != LOCAL_SCHEDULE:
        rule = f"local updates have an order of their own, not {pipeline.schedule}"
        raise SpecError("parallel.pipeline.schedule", rule, "leave it out, or write training.method: backprop")


def check_auxiliary(method: Method, auxiliary_s: float) -> None:
    """Raise SpecError for a textbook's time of heads that it does not have."""
    if method == "backprop" and auxiliary_s:
        rule = "auxiliary heads belong to local updates, and training.method is backprop"
        raise SpecError("model.auxiliary", rule, "leave it out, or write training.method: local")
