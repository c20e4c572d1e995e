"""The two numbers of each task in traces/published/clover_large.csv and clover_small.csv, fitted to half of its cells.

.venv/bin/python docs/fit_clover.py clover_large clover_small

The length of a task's prompts is fitted to its cells without drafts, then Clover's first hit rate to those with drafts.
The other rates follow from the first, as the table's YAML file says. The file is written anew. Beside that, the numbers
are fitted to all batches but one, for each batch, and the cells of that one are predicted: the signs of the gains.
"""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import click
import numpy as np
from scipy.optimize import brentq

from scenarios.fitting.measured_steps import FITTED
from scenarios.validation.published import predicted
from sim.serving.decoding.tree import greedy_tree, length_probabilities
from traces.published import FOLDER, PublishedTable, load_table

PROMPTS: Final = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)
RATES: Final = tuple(hundredth / 100.0 for hundredth in range(26, 71, 2))
CLOVER: Final = np.array([0.892, 0.814, 0.754]) / 0.892
MEDUSA: Final = np.array([0.775, 0.597, 0.490]) / 0.775
RANK_RATIO: Final = 0.3
RANKS: Final = 10
NODES: Final = 4
EXTRA: Final = 1.63
"""Clover's extra tokens per step over Medusa's: the middle of the paper's 50 to 76 % more."""
PLAIN: Final = "autoregressive"
PAIRS: Final = (("clover", PLAIN), ("medusa", PLAIN), ("clover", "medusa"))
Cell = dict[str, Any]
Numbers = Mapping[str, tuple[int, float]]
"""Of each task: tokens of a prompt, and Clover's first hit rate."""


def half_of(task: str, method: str, batch: str) -> str:
    """Return the half of a cell: the parity of the first byte of its name's SHA-256."""
    return "held out" if sha256(f"{task} {method} {batch}".encode()).digest()[0] % 2 else FITTED


def extra_tokens(rates: Sequence[float]) -> float:
    """Return the tokens beyond the sure one that the best tree of four nodes yields per step."""
    table = [[first * RANK_RATIO**rank for rank in range(RANKS)] for first in rates]
    lengths = length_probabilities(greedy_tree(table, NODES), table)
    return float(np.dot(lengths, np.arange(len(lengths))))


def rates_of(method: str, first: float) -> list[float]:
    """Return the hit rates of a method that go with Clover's first; none without drafts."""
    clover = (first * CLOVER).tolist()
    if method != "medusa":
        return clover if method == "clover" else []
    wanted = extra_tokens(clover) / EXTRA
    return (brentq(lambda rate: extra_tokens((rate * MEDUSA).tolist()) - wanted, 1e-3, 0.99) * MEDUSA).tolist()


@dataclass(slots=True)
class Rates:
    """Predicted tokens per second of a table's cells, each simulated once."""

    table: PublishedTable
    known: dict[tuple[str, int, float], float] = field(default_factory=dict)

    def at(self, cell: Cell, prompt_tokens: int, first: float) -> float:
        """Return the prediction with these two numbers."""
        row, first = cell["row"], first if cell["method"] != PLAIN else 0.0
        if (row.name, prompt_tokens, first) not in self.known:
            keys = {"requests.prompt_tokens": prompt_tokens, "decoding.hit_rates": rates_of(cell["method"], first)}
            changed = type(row)(row.name, {**row.overrides, **keys}, row.measured, row.group, row.line)
            self.known[row.name, prompt_tokens, first] = predicted(self.table, changed).value
        return self.known[row.name, prompt_tokens, first]

    def error(self, cells: Iterable[Cell], prompt_tokens: int, first: float) -> float:
        """Return the mean absolute error of cells with these two numbers."""
        return float(np.mean([abs(self.at(cell, prompt_tokens, first) / cell["row"].measured - 1.0) for cell in cells]))

    def fitted(self, cells: Sequence[Cell]) -> Numbers:
        """Return the two numbers of each task that fit these cells best."""
        found = {}
        for task in dict.fromkeys(cell["task"] for cell in cells):
            plain = [cell for cell in cells if cell["task"] == task and cell["method"] == PLAIN]
            drafted = [cell for cell in cells if cell["task"] == task and cell["method"] != PLAIN]
            prompt_tokens = min(PROMPTS, key=lambda tokens: self.error(plain, tokens, 0.0))
            found[task] = prompt_tokens, min(RATES, key=lambda first: self.error(drafted, prompt_tokens, first))
        return found

    def predictions(self, cells: Iterable[Cell], numbers: Numbers) -> dict[tuple[str, str, str], float]:
        """Return the prediction of each cell."""
        return {named(cell): self.at(cell, *numbers[cell["task"]]) for cell in cells}


def named(cell: Cell) -> tuple[str, str, str]:
    """Return a cell's task, method and batch."""
    return cell["task"], cell["method"], cell["batch"]


def right_signs(cells: Sequence[Cell], predictions: Mapping[tuple[str, str, str], float]) -> str:
    """Return for each pair of methods, in how many tasks and batches the predicted gain has the measured sign."""
    measured = {named(cell): cell["row"].measured for cell in cells}
    told = []
    for one, other in PAIRS:
        places = [
            (task, batch) for task, method, batch in measured if method == one and (task, other, batch) in measured
        ]
        wrong = [
            f"{task} {batch}"
            for task, batch in places
            if (measured[task, one, batch] > measured[task, other, batch])
            != (predictions[task, one, batch] > predictions[task, other, batch])
        ]
        told.append(f"{one} over {other} {len(places) - len(wrong)} of {len(places)} ({', '.join(wrong)})")
    return "; ".join(told)


def fit(name: str) -> None:
    """Fit all tasks of a table, write its rows, and tell the signs of the gains."""
    table = load_table(FOLDER / f"{name}.yaml")
    with table.data.open(encoding="utf-8") as file:
        cells: list[Cell] = list(csv.DictReader(file))
    for cell, row in zip(cells, table.rows, strict=True):
        cell.update(half=half_of(*named(cell)), row=row)
    rates = Rates(table)
    numbers = rates.fitted([cell for cell in cells if cell["half"] == FITTED])
    for task, (prompt_tokens, first) in numbers.items():
        click.echo(f"{task}: prompts of {prompt_tokens} tokens, first hit rate {first:.2f}")
    click.echo(f"half of the cells fitted: {right_signs(cells, rates.predictions(cells, numbers))}")
    left_out = {}
    for batch in dict.fromkeys(cell["batch"] for cell in cells):
        others = rates.fitted([cell for cell in cells if cell["batch"] != batch])
        left_out.update(rates.predictions([cell for cell in cells if cell["batch"] == batch], others))
    errors = [abs(left_out[named(cell)] / cell["row"].measured - 1.0) for cell in cells]
    click.echo(f"each batch left out: mean error {np.mean(errors):.1%}; {right_signs(cells, left_out)}")
    write(table, cells, numbers)


def write(table: PublishedTable, cells: Sequence[Cell], numbers: Numbers) -> None:
    """Write the table's rows with these numbers."""
    for cell in cells:
        prompt_tokens, first = numbers[cell["task"]]
        rates = rates_of(cell["method"], first) or (0.0, 0.0, 0.0)
        names = zip(("rate1", "rate2", "rate3"), rates, strict=True)
        cell.update({name: f"{rate:.3g}" for name, rate in names}, prompt_tokens=prompt_tokens)
    columns = ("task", "method", "batch", "half", "tokens_per_s", "prompt_tokens", "rate1", "rate2", "rate3")
    with table.data.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        fit(each)
