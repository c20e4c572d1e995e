"""The two numbers of each task in traces/published/clover_large.csv and clover_small.csv, fitted to half of its cells.

.venv/bin/python docs/fit_clover.py clover_large clover_small

The length of a task's prompts is fitted to its cells without drafts, then Clover's first hit rate to those with drafts.
The other rates follow from the first, as the table's YAML file says. The file is written anew.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
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
RATES: Final = tuple(hundredth / 100.0 for hundredth in range(26, 71, 4))
NEAR: Final = 0.02
CLOVER: Final = np.array([0.892, 0.814, 0.754]) / 0.892
MEDUSA: Final = np.array([0.775, 0.597, 0.490]) / 0.775
RANKS: Final = 10
EXTRA: Final = 1.63
"""Clover's extra tokens per step over Medusa's: the middle of the paper's 50 to 76 % more."""
Cell = dict[str, Any]


def half_of(task: str, method: str, batch: str) -> str:
    """Return the half of a cell: the parity of the first byte of its name's SHA-256."""
    return "held out" if sha256(f"{task} {method} {batch}".encode()).digest()[0] % 2 else FITTED


def extra_tokens(rates: Sequence[float], base: Mapping[str, Any]) -> float:
    """Return the tokens beyond the sure one that the best tree of four nodes yields per step."""
    table = [[first * base["decoding"]["rank_ratio"] ** rank for rank in range(RANKS)] for first in rates]
    lengths = length_probabilities(greedy_tree(table, base["decoding"]["drafted"]), table)
    return float(np.dot(lengths, np.arange(len(lengths))))


def rates_of(first: float, base: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the hit rates of each method that go with Clover's first."""
    clover = (first * CLOVER).tolist()
    wanted = extra_tokens(clover, base) / EXTRA
    medusa = brentq(lambda rate: extra_tokens((rate * MEDUSA).tolist(), base) - wanted, 1e-3, 0.99)
    return {"clover": clover, "medusa": (medusa * MEDUSA).tolist(), "autoregressive": [0.0, 0.0, 0.0]}


def error(table: PublishedTable, cells: Sequence[Cell], prompt_tokens: int, first: float) -> float:
    """Return the mean absolute error of cells with these two numbers."""
    rates, errors = rates_of(first, table.base), []
    for cell in cells:
        keys = {"requests.prompt_tokens": prompt_tokens, "decoding.hit_rates": rates[cell["method"]]}
        if cell["method"] == "autoregressive":
            keys["decoding.hit_rates"] = []
        row = cell["row"]
        changed = type(row)(row.name, {**row.overrides, **keys}, row.measured, row.group, row.line)
        errors.append(abs(predicted(table, changed).value / row.measured - 1.0))
    return float(np.mean(errors))


def fitted(table: PublishedTable, cells: Sequence[Cell]) -> tuple[int, float]:
    """Return the length of a task's prompts and Clover's first hit rate."""
    known = [cell for cell in cells if cell["half"] == FITTED]
    plain = [cell for cell in known if cell["method"] == "autoregressive"]
    drafted = [cell for cell in known if cell["method"] != "autoregressive"]
    prompt_tokens = min(PROMPTS, key=lambda tokens: error(table, plain, tokens, RATES[0]))
    coarse = min(RATES, key=lambda first: error(table, drafted, prompt_tokens, first))
    near = [first for first in (coarse - NEAR, coarse, coarse + NEAR) if first <= RATES[-1]]
    return prompt_tokens, min(near, key=lambda first: error(table, drafted, prompt_tokens, first))


def fit(name: str) -> None:
    """Fit all tasks of a table and write its rows."""
    table = load_table(FOLDER / f"{name}.yaml")
    with table.data.open(encoding="utf-8") as file:
        cells: list[Cell] = list(csv.DictReader(file))
    for cell, row in zip(cells, table.rows, strict=True):
        cell["half"] = half_of(cell["task"], cell["method"], cell["batch"])
        cell["row"] = row
    for task in dict.fromkeys(cell["task"] for cell in cells):
        of_task = [cell for cell in cells if cell["task"] == task]
        prompt_tokens, first = fitted(table, of_task)
        click.echo(f"{task}: prompts of {prompt_tokens} tokens, first hit rate {first:.2f}")
        rates = rates_of(first, table.base)
        for cell in of_task:
            numbers = zip(("rate1", "rate2", "rate3"), rates[cell["method"]], strict=True)
            cell.update({name: f"{rate:.3g}" for name, rate in numbers}, prompt_tokens=prompt_tokens)
    columns = ("task", "method", "batch", "half", "tokens_per_s", "prompt_tokens", "rate1", "rate2", "rate3")
    with table.data.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        fit(each)
