"""What a strategy must keep to where layers have experts, and what of the other techniques is not built for them."""

from typing import Final

from sim.training.errors import SpecError
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.model import TransformerSpec

DEGREE_KEY: Final = "parallel.expert.degree"


def check_expert_degree(model: TransformerSpec, expert_degree: int, data_degree: int) -> None:
    """Raise SpecError unless so many data-parallel ranks can share out the experts."""
    if model.experts is None:
        if expert_degree > 1:
            rule = f"{expert_degree} ranks share out experts, and the model has none"
            raise SpecError(DEGREE_KEY, rule, "leave it out, or write model.experts")
        return
    num_experts = model.experts.num_experts
    if data_degree % expert_degree or num_experts % expert_degree:
        divisors = [n for n in range(1, num_experts + 1) if not data_degree % n and not num_experts % n]
        raise SpecError(
            DEGREE_KEY,
            f"{expert_degree} ranks of {data_degree} data-parallel ones do not share out {num_experts} experts evenly",
            f"write a number that divides both: {', '.join(map(str, divisors))}",
        )


def check_expert_techniques(
    model: TransformerSpec, pipeline: PipelineSpec, *, is_local: bool, by_operator: bool, casts: bool
) -> None:
    """Raise SpecError for techniques that are not built for layers with experts."""
    if model.experts is None:
        return
    refused = {
        "training.method": (is_local, "local updates are not built for experts", "write method: backprop"),
        "parallel.data.osdp": (by_operator, "osdp is not built for experts", "leave it out"),
        "training.precision": (casts, "fp8 is not built for the grouped products of experts", "write precision: bf16"),
        "parallel.pipeline.token_slices": (
            pipeline.num_slices > 1,
            "experts have slots for the tokens of a whole micro-batch, and slices of it are not built",
            "choose a schedule without slices, as 1f1b",
        ),
    }
    for key, (is_wrong, rule, remedy) in refused.items():
        if is_wrong:
            raise SpecError(key, rule, f"{remedy}, or leave model.experts out")


def check_shared_out(expert_degree: int, zero_stage: int, pipeline: PipelineSpec) -> None:
    """Raise SpecError for what takes all data-parallel ranks to hold the same, where they share out experts."""
    if expert_degree == 1:
        return
    if zero_stage > 1:
        rule = f"ZeRO stage {zero_stage} is not built for ranks that share out experts"
        raise SpecError("parallel.data.zero_stage", rule, f"write zero_stage: 1, or {DEGREE_KEY}: 1")
    if pipeline.schedule == "aiao" or pipeline.gradient_delay:
        rule = f"{pipeline.schedule} is not built for ranks that share out experts"
        raise SpecError("parallel.pipeline.schedule", rule, f"write schedule: 1f1b, or {DEGREE_KEY}: 1")
