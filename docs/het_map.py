"""The table of docs/recommendation.md: bytes of HET's workers with a cache, beside those of workers without one.

.venv/bin/python docs/het_map.py
"""

from collections.abc import Sequence
from pathlib import Path

import click

from scenarios.library.shipped import FOLDER
from scenarios.reading.documents.yaml_tree import read_document
from sim.embedding.het import Clocking
from sim.embedding.het_run import HEADER_BYTES, HetSpec, run_het
from sim.embedding.ids import Table
from sim.embedding.run import CacheSpec
from sim.embedding.turns import Workers

KAGGLE: Path = FOLDER / "papers" / "cached-embedding-dlrm-kaggle-a100.yaml"
ROW_BYTES, SCALE, WORKERS, BATCH_SIZE, STEPS, MEASURED = 512, 100, 4, 128, 240, 80
BOUNDS, ZIPFS = (0, 10, 100), (1.05, 1.2, 1.5, 2.0)


def kaggle_tables(zipf: float) -> list[Table]:
    """Return tables with a hundredth of the rows of Criteo Kaggle's categories, rounded up, of one popularity."""
    tables = read_document(KAGGLE).data["tables"]
    return [Table(name=t["name"], num_rows=-(-t["num_rows"] // SCALE), num_lookups=1, zipf=zipf) for t in tables]


def bytes_fraction(tables: Sequence[Table], bound: int) -> float:
    """Return the bytes of workers whose caches hold a tenth of all rows, as a part of those of workers without one."""
    cache = CacheSpec(num_slots=sum(table.num_rows for table in tables) // 10, policy="lfu", warm_up=0.0)
    workers = Workers(consistency="asp", relative_step_times=(1.0,) * WORKERS)
    spec = HetSpec(workers=workers, clocking=Clocking(read_bound=bound, write_bound=bound), cache=cache)
    run = run_het(tables, spec, STEPS, BATCH_SIZE, seed=0)
    moved = run.received_bytes(ROW_BYTES) + run.sent_bytes(ROW_BYTES)
    uncached = 2 * (HEADER_BYTES + ROW_BYTES) * run.unique
    return float(moved[-MEASURED:].sum() / uncached[-MEASURED:].sum())


def main() -> None:
    """Print the table."""
    for zipf in ZIPFS:
        tables = kaggle_tables(zipf)
        fractions = [bytes_fraction(tables, bound) for bound in BOUNDS]
        shown = " | ".join(f"{fraction:.2%}" for fraction in fractions)
        click.echo(f"| {zipf:g} | {shown} | {1 / fractions[-1]:.1f} |")


if __name__ == "__main__":
    main()
