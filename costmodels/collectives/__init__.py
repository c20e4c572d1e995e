"""Collectives: what they ask of a network (closed forms), and how they do it (step lists)."""

from costmodels.collectives.cost import (
    CollectiveCost,
    NetworkParameters,
    Protocol,
    collective_cost,
    exclusive_seconds,
    lower_bound_bytes,
    point_to_point_cost,
)

__all__ = [
    "CollectiveCost",
    "NetworkParameters",
    "Protocol",
    "collective_cost",
    "exclusive_seconds",
    "lower_bound_bytes",
    "point_to_point_cost",
]
