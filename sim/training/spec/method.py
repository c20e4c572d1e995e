"""How gradients come about: by backpropagation through the model, or by local updates: typed, checked input."""

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
        rule = (
            f"local updates have an order of their own, not {pipeline.schedule}: no backward waits for the whole model"
        )
        raise SpecError("parallel.pipeline.schedule", rule, "leave it out, or write training.method: backprop")


def check_blocks(method: Method, *, tied_embeddings: bool, zero_stage: int, sharded_operators: bool) -> None:
    """Raise SpecError where local updates would share a table between blocks, and for what is not built."""
    if method == "backprop":
        return
    if zero_stage > 1:
        rule = f"ZeRO stage {zero_stage} is not built for local updates"
        raise SpecError("parallel.data.zero_stage", rule, "write zero_stage: 1")
    if sharded_operators:
        raise SpecError("parallel.data.osdp", "osdp is not built for local updates", "leave it out")
    if tied_embeddings:
        rule = "with local updates every block has a head and an optimizer step of its own, and shares no table"
        raise SpecError("model.tied_embeddings", rule, "write tied_embeddings: false")


def check_delay(pipeline: PipelineSpec, *, tied_embeddings: bool, zero_stage: int, sharded_operators: bool) -> None:
    """Raise SpecError for what is not built with gradients that are one step late."""
    if not pipeline.gradient_delay:
        return
    if tied_embeddings and pipeline.degree > 1:
        rule = f"with {pipeline.schedule} the first and the last rank update at different times, and share no table"
        raise SpecError("model.tied_embeddings", rule, "write tied_embeddings: false")
    if zero_stage or sharded_operators:
        key = "osdp" if sharded_operators else "zero_stage"
        rule = f"{key} is not built with {pipeline.schedule}, which keeps two versions of whole weights"
        raise SpecError(f"parallel.data.{key}", rule, "leave it out, or write schedule: 1f1b")


def check_auxiliary(method: Method, auxiliary_s: float) -> None:
    """Raise SpecError for a textbook's time of heads that it does not have."""
    if method == "backprop" and auxiliary_s:
        rule = "auxiliary heads belong to local updates, and training.method is backprop"
        raise SpecError("model.auxiliary", rule, "leave it out, or write training.method: local")
