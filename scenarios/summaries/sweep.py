"""A sweep: the classes behind sweep.json."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

from msgspec import Struct

from scenarios.summaries.as_json import INLINE

SWEEP_SCHEMA: Final = "meshtwin.sweep/1"

R = TypeVar("R")


class SweptSetting(Struct, frozen=True, kw_only=True):
    """A key of the scenario, and the values that a sweep gives it."""

    key: str
    values: tuple[Any, ...]


class SweptPoint(Struct, Generic[R], frozen=True, kw_only=True):
    """A simulated point: the value of each key, and the results, a frozen record of its kind of work.

    The keys of the results stand beside ``set`` in JSON.
    """

    set: Mapping[str, Any]
    results: Annotated[R, INLINE]


class RefusedPoint(Struct, frozen=True, kw_only=True):
    """A point that the scenario's rules do not allow: the value of each key, and the rule."""

    set: Mapping[str, Any]
    reason: str


class SweepSummary(Struct, Generic[R], frozen=True, kw_only=True):
    """The answer of a sweep: points in the order of their kind of work, the best first."""

    schema: str = SWEEP_SCHEMA
    scenario: str
    workload: str
    settings: tuple[SweptSetting, ...]
    points: tuple[SweptPoint[R], ...]
    refused: tuple[RefusedPoint, ...]
