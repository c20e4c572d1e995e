"""Collectives: their cost on a network (closed forms), and their messages (step lists)."""

from costmodels.collectives.catalogue import STEP_LISTS, collective_steps
from costmodels.collectives.cost import collective_cost, exclusive_seconds, lower_bound_bytes, point_to_point_cost
from costmodels.collectives.network import CollectiveCost, NetworkParameters, Protocol
from costmodels.collectives.steps import Step, StepList
from costmodels.collectives.stepwise import direct_exchange_costs, split_bytes, steps_cost, uneven_all_to_all_cost

__all__ = [
    "STEP_LISTS",
    "CollectiveCost",
    "NetworkParameters",
    "Protocol",
    "Step",
    "StepList",
    "collective_cost",
    "collective_steps",
    "direct_exchange_costs",
    "exclusive_seconds",
    "lower_bound_bytes",
    "point_to_point_cost",
    "split_bytes",
    "steps_cost",
    "uneven_all_to_all_cost",
]
