"""Clover's table: where drafts help, by how much less in larger batches, and which method leads."""

from pathlib import Path

import pytest

from scenarios.validation import published
from traces.published import published_tables

TABLE = next(path for path in published_tables() if path.stem == "clover_large")
BATCHES = (4, 8, 16, 24, 32, 48)


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[float, float]]]:
    """Return measured and predicted rates by method, batch after batch, of one task."""
    header, *lines = TABLE.with_suffix(".csv").read_text(encoding="utf-8").splitlines(keepends=True)
    data = Path(tmp_path_factory.mktemp("clover")) / "code.csv"
    data.write_text(header + "".join(line for line in lines if line.startswith("Code,")), encoding="utf-8")
    (table,) = published.run((TABLE,), data).tables
    found: dict[str, list[tuple[float, float]]] = {}
    for row in table.rows:
        found.setdefault(row.name.split()[1], []).append((row.measured, row.predicted))
    return found


def test_gains_have_the_published_signs(rates: dict[str, list[tuple[float, float]]]) -> None:
    """Clover beats Medusa, and one token at a time, in every batch."""
    for place in range(len(BATCHES)):
        for kind in (0, 1):
            clover, medusa, plain = (rates[name][place][kind] for name in ("clover", "medusa", "autoregressive"))
            assert clover > max(medusa, plain)


def test_gain_falls_with_the_batch(rates: dict[str, list[tuple[float, float]]]) -> None:
    """A pass verifies batch x tree positions: from 4 to 48 sequences the predicted gain falls, as the measured one."""
    for kind in (0, 1):
        gains = [
            clover[kind] / plain[kind] for clover, plain in zip(rates["clover"], rates["autoregressive"], strict=True)
        ]
        assert gains[0] > gains[2] > gains[-1]
