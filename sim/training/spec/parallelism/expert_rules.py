"""How ranks share out experts: typed, checked input."""

from typing import Final

from sim.training.errors import SpecError
from sim.training.spec.models.model import TransformerSpec

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


def check_sources(num_sources: int, expert_degree: int, data_degree: int) -> None:
    """Raise SpecError unless a forced routing has a source per rank that shares out experts, or per replica."""
    if num_sources not in (expert_degree, data_degree):
        most = f"the {data_degree} data-parallel ranks, or the {expert_degree} that share out experts"
        raise SpecError(
            "model.experts.routing",
            f"it has {num_sources} source ranks, which are neither {most}",
            f"use a routing of {data_degree} source ranks, or other degrees",
        )
