"""ASTRA-sim's analytical network on the same work: its answers follow from the closed forms and its own rules."""

import math
from pathlib import Path

import pandas as pd
import pytest

from costmodels.collectives.cost import lower_bound_bytes
from tests.costmodels.collectives.astra_sim_rules import RULES, fabrics, pipelined_s, read_rows


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> pd.DataFrame:
    """Return ASTRA-sim's answers with their classes; skip where there is no file of them."""
    return read_rows(shared_data)


@pytest.mark.parametrize("family", RULES)
def test_closed_forms_agree(rows: pd.DataFrame, family: str) -> None:
    """Every row of a class comes out within 2 % once its rules are applied to the closed forms."""
    rule = RULES[family]
    members = rows[rows.family == family]
    assert len(members) == rule.num_rows
    for _, row in members.iterrows():
        assert rule.seconds(row) * 1e9 == pytest.approx(row["simulated_ns"], rel=0.02), dict(row)


def test_every_row_belongs_to_a_class(rows: pd.DataFrame) -> None:
    """No row is left out."""
    assert set(rows.family) == set(RULES)
    assert len(rows) == sum(rule.num_rows for rule in RULES.values())


def test_a_pipelined_collective_is_faster_and_possible(rows: pd.DataFrame) -> None:
    """Without its rules (one collective, pipelined, memory passes hidden) no answer is slower, or below the bound."""
    for _, row in rows[~rows.topology.str.contains(" x ")].iterrows():
        [fabric] = fabrics(row)
        size = row["bytes_per_device"] * (fabric.num_devices if row["collective"] == "all_gather" else 1)
        bound_s = lower_bound_bytes(row["collective"], size, fabric.num_devices) / fabric.bandwidth_bytes_per_s
        assert bound_s < pipelined_s(row) <= row["simulated_ns"] * 1e-9
        assert math.isfinite(pipelined_s(row))
