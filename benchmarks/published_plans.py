"""Published degrees beside those that a search finds, both simulated, all other keys being the same.

``python -m benchmarks.published_plans --table megatron_sc21_table1 --row 39B`` prints a row; without ``--row`` all.
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from benchmarks.measuring import Row, markdown
from costmodels.units import format_bytes, format_time
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import search
from scenarios.sweep.workers import ThisProcess
from scenarios.validation.published import entry_of
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.running import plan_of, run_plan
from sim.engine.running.memory import memory_use
from sim.training.pipeline.rules import Schedule
from traces.published import PublishedTable, load_table, published_tables

OPEN: Final = {
    "parallel.tensor.degree": "t", "parallel.pipeline.degree": "p", "parallel.pipeline.virtual_stages": "v",
    "parallel.pipeline.schedule": "", "parallel.data.degree": "d", "training.microbatch_size": "b",
}  # fmt: skip
"""The keys that are published and searched, and their letters."""
NOT_SEARCHED: Final = ("parallel.data.bucket", "parallel.data.overlap_gradient_sync")
"""Keys of the tables that estimates know nothing of; both sides go without them."""
WITHIN: Final = 1.02
IN_MEGATRON: Final[tuple[Schedule, ...]] = ("1f1b", "interleaved_1f1b")
"""The schedules of the software that the publications used."""


def at(entry: dict[str, Any], key: str, *, taken: bool = False) -> Any:
    """Return the value of a dotted key, None where there is none; ``taken``: and take it out."""
    *folders, last = key.split(".")
    for folder in folders:
        entry = entry.get(folder) or {}
    return entry.pop(last, None) if taken else entry.get(last)


def words(values: dict[str, Any]) -> str:
    """Return degrees in short: t8 p4 v3 d16 b1."""
    return " ".join(
        f"{letter}{values[key]}" for key, letter in OPEN.items() if letter and values.get(key) not in (None, "auto")
    )


def compared(table: PublishedTable, name: str, folder: Path, num_proofs: int) -> Row:
    """Return published degrees and found ones, with their simulated seconds per step and memory."""
    entry = deepcopy(entry_of(table, next(row for row in table.rows if row.name == name)))
    for key in NOT_SEARCHED:
        at(entry, key, taken=True)
    published = {key: at(entry, key, taken=True) for key in OPEN}
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(entry), encoding="utf-8")
    given = [f"{key}={value}" for key, value in published.items() if value is not None]
    scenario = load_step(path, given)
    plan = plan_of(scenario)
    time_s = run_plan(scenario, plan).iteration_time_s
    peak = max(memory_use(program).peak_bytes for program in plan.programs)
    best = search(
        path, [], Request(num_proofs=num_proofs, schedules=IN_MEGATRON), Resources(ThisProcess())
    ).summary.plans[0]
    found = f"{words(dict(best.set))}: {format_time(best.iteration_time_s)}, {format_bytes(best.peak_memory_bytes)}"
    stated = f"{words(published)}: {format_time(time_s)}, {format_bytes(peak)}"
    return Row(f"{table.path.stem} {name}", found, stated, best.iteration_time_s <= WITHIN * time_s)


def rows(name: str, chosen: list[str], num_proofs: int) -> Iterator[Row]:
    """Yield the comparison of every row of a table, or of some."""
    table = load_table(next(path for path in published_tables() if path.stem == name))
    with TemporaryDirectory() as folder:
        for row in table.rows:
            if not chosen or row.name in chosen:
                yield compared(table, row.name, Path(folder), num_proofs)


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--table", default="megatron_sc21_table1")
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--proofs", type=int, default=2)
    given = parser.parse_args()
    print(markdown(list(rows(given.table, given.row, given.proofs))))
