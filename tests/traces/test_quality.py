"""Curves of quality: what is read, what is interpolated, and what is not borrowed."""

from pathlib import Path

import numpy as np
import pytest

from traces.errors import TraceError
from traces.quality import COLUMNS, FOLDER, QualityCurve, curve_of, read_curves

HEAD = ",".join(COLUMNS)


def curve(gate: str = "switch") -> QualityCurve:
    """Return a curve of three points, of which the last but one is worse than that before it."""
    steps = np.array([10.0, 20.0, 30.0, 40.0])
    return QualityCurve("f.csv", "m", gate, "loss", steps, 100.0 * steps, np.ones(4), np.array([4.0, 3.0, 3.5, 2.0]))


def test_a_metric_is_reached_between_points_along_the_logarithm_of_tokens() -> None:
    """A point that is worse than one before it counts as that one."""
    assert curve().tokens_to(4.0) == pytest.approx(1000.0)
    assert curve().tokens_to(3.5) == pytest.approx(1000.0 * 2.0**0.5)
    assert curve().tokens_to(3.0) == pytest.approx(2000.0)
    assert curve().tokens_to(2.5) == pytest.approx((3000.0 * 4000.0) ** 0.5)


def test_time_adds_up_the_steps_of_every_stretch() -> None:
    """Steps of one second make the time that of the steps; slower ones late count only if they are needed."""
    assert curve().time_to(2.0, [1.0] * 4) == pytest.approx(40.0)
    assert curve().time_to(3.0, [2.0, 1.0, 9.0, 9.0]) == pytest.approx(30.0)
    with pytest.raises(TraceError, match="goes from 4 to 2, not to 1"):
        curve().tokens_to(1.0)


def test_no_curve_is_borrowed_unless_it_is_said() -> None:
    """The error names what there is; with the assumption stated, that curve is taken."""
    curves = [curve("switch"), curve("dense_to_sparse")]
    assert curve_of(curves, "m", "switch") is curves[0]
    with pytest.raises(TraceError, match=r"record one, or state assume_equal_to .switch, dense"):
        curve_of(curves, "m", "topology_aware")
    assert curve_of(curves, "m", "topology_aware", assume_equal_to="switch") is curves[0]
    with pytest.raises(TraceError, match="another model's, of m"):
        curve_of(curves, "n", "switch")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model,gate\n", "f.csv:1: the columns are others"),
        (f"{HEAD}\nm,switch,10,1e3,1,loss,low\n", "metric: 'low' is"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    """With file, line, column, rule and remedy."""
    (tmp_path / "f.csv").write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=says):
        read_curves(tmp_path / "f.csv")


def test_shipped_curves_learn() -> None:
    """Both gates end with one expert per token, at least a nat below where they began."""
    curves = read_curves(FOLDER / "python_help.csv")
    assert [found.gate for found in curves] == ["switch", "dense_to_sparse"]
    for found in curves:
        assert found.metric[0] - found.metric[-1] > 1.0
        assert found.active_experts[-1] == 1.0
    assert curves[1].active_experts[0] > 3.0
