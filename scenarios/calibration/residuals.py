"""The errors of a profile on measured kernels and collectives, without any fit to them."""

from collections.abc import Callable, Iterator, Sequence
from math import log
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
from msgspec import Struct

from costmodels.calibration.kernels import Fitted
from costmodels.hardware import NodeSpec
from costmodels.profile import load_profile
from costmodels.spread import NORMAL_90, Spread
from scenarios.calibration.calibration import Point, families_of, points_of
from scenarios.calibration.tables import HELD_OUT_TABLES, read_tables
from scenarios.errors import Origin, ScenarioError
from scenarios.reading.clusters.profile_file import read_profile
from scenarios.summaries.measured.residuals import FamilyErrors, JudgedCall, ProfileErrors

LONGER_THAN_S: Final = (0.0, 10e-6, 100e-6, 1e-3)
"""Thresholds on measured time: calls are judged all together, and again above each threshold."""
NUM_WORST: Final = 10


class TablesAsked(Struct, frozen=True, kw_only=True):
    """Measured tables to judge a profile by. ``profile``: its file, None for the packaged one of the node's devices.

    ``system``: the system whose rows of collectives count.
    ``held_out``: only rows that a fit to these tables holds out.
    """

    tables: tuple[Path, ...]
    node: NodeSpec
    profile: Path | None = None
    system: str | None = None
    held_out: bool = False


def judge(asked: TablesAsked, fail_above: float | None = None) -> ProfileErrors:
    """Return the errors of a profile on measured tables, by family and length of call, and the worst calls.

    Errors are fractions of the measured time, negative if the prediction is less. ``passed``: no family's mean is above
    ``fail_above``. Raises ScenarioError for an unusable table or profile.
    """
    start = _profile_and_node(asked)
    samples = read_tables(asked.tables, asked.system)
    points = [p for p in points_of(samples, start, HELD_OUT_TABLES) if p.held_out or not asked.held_out]
    if not points:
        rule, remedy = "none of the rows is held out of a fit", "leave --held-out out, or name more rows"
        raise ScenarioError(Origin(option="--held-out"), "", rule, remedy)
    families = tuple(_families(points, start.profile.spread.get))
    most = max(row.mean_absolute_error for row in families if row.longer_than_s == 0.0)
    farthest = sorted(points, key=lambda point: -abs(_error(point)))[:NUM_WORST]
    return ProfileErrors(
        node=start.node.name,
        profile=start.profile.name if asked.profile is None else str(asked.profile),
        tables=tuple(str(path) for path in asked.tables),
        families=families,
        worst=tuple(_judged(point) for point in farthest),
        passed=fail_above is None or most <= fail_above,
    )


def _profile_and_node(asked: TablesAsked) -> Fitted:
    """Return the profile, and the node with the rates measured in its file in place of the catalogue's."""
    if asked.profile is None:
        return Fitted(load_profile(asked.node.device.profile), asked.node)
    found = read_profile(asked.profile)
    if not found.holds_for(asked.node.name):
        rule = f"the profile is one of {found.node}, not of {asked.node.name}"
        raise ScenarioError(Origin(str(asked.profile)), "node", rule, f"write --node {found.node}")
    return Fitted(found.profile, found.node_spec(asked.node))


def _families(points: Sequence[Point], spread_of: Callable[[str], Spread | None]) -> Iterator[FamilyErrors]:
    """Yield the errors of every family's calls: of all, and of those above each threshold that some exceed."""
    for family in families_of(points):
        for least_s in LONGER_THAN_S:
            if ours := [p for p in points if p.family == family and p.measured_s > least_s]:
                yield _errors(family, least_s, ours, spread_of)


def _errors(
    family: str, least_s: float, points: Sequence[Point], spread_of: Callable[[str], Spread | None]
) -> FamilyErrors:
    errors = np.array([_error(point) for point in points])
    half, nine_tenths, nearly_all = np.quantile(np.abs(errors), (0.5, 0.9, 0.95))
    inside = [_is_inside(point, spread) for point in points if (spread := spread_of(point.spread_family)) is not None]
    return FamilyErrors(
        family=family,
        longer_than_s=least_s,
        calls=len(points),
        mean_absolute_error=float(np.abs(errors).mean()),
        median=float(half),
        percentile_90=float(nine_tenths),
        percentile_95=float(nearly_all),
        worst=float(np.abs(errors).max()),
        bias=float(errors.mean()),
        coverage=fmean(inside) if inside else None,
    )


def _error(point: Point) -> float:
    return point.predicted_s / point.measured_s - 1.0


def _is_inside(point: Point, spread: Spread) -> bool:
    """Return whether a call is inside its family's 90 % interval."""
    return abs(log(point.measured_s / point.predicted_s)) <= NORMAL_90 * spread.at(point.predicted_s)


def _judged(point: Point) -> JudgedCall:
    return JudgedCall(call=point.words, measured_s=point.measured_s, predicted_s=point.predicted_s, error=_error(point))
