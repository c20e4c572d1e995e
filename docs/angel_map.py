"""The tables and the picture of docs/memory.md against Angel-PTM's published figures, on one node of 8 A100-40GB.

.venv/bin/python docs/angel_map.py        # some minutes of processor time

It prints throughput over model size, micro-batch and cached bytes, and the largest models by bisection, and draws
docs/angel.svg.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import matplotlib as mpl
from matplotlib.figure import Figure

from scenarios import api
from scenarios.summaries.steps.step import StepSummary

PAPER: Final = "papers/angel-ptm-gpt-29b-8-a100"
LAYERS: Final = (12, 24, 36, 48, 60, 72)
MICROBATCHES: Final = (1, 2, 4)
CACHED: Final = (0, 14, 28)
RANKS: Final = 8
MORE_TOKENS: Final = 0.889
LARGER: Final = 1.148
"""Angel-PTM's abstract: more throughput, and larger models, than existing systems."""
MANAGERS: Final = {
    "deepspeed": "{manager: deepspeed}",
    "angel_ptm": "{manager: angel_ptm, gathered: 5 GB}",
    "angel_ptm, 28 GB cached": "{manager: angel_ptm, gathered: 5 GB, cached: 28 GB}",
}
FITS: Final = 64
TOO_MANY: Final = 128
"""Numbers of layers between which the most is searched."""


def summary_of(memory: str, num_layers: int, microbatch: int = 1) -> StepSummary:
    """Return the summary of the paper's model with other layers, micro-batches and memory."""
    batch = [f"training.microbatch_size={microbatch}", f"training.global_batch_size={microbatch * RANKS}"]
    found: StepSummary = api.simulate(PAPER, [f"memory={memory}", f"model.num_layers={num_layers}", *batch]).summary
    return found


def tokens_per_s(memory: str, num_layers: int, microbatch: int) -> float | None:
    """Return the throughput of a model that fits; None of one that does not."""
    found = summary_of(memory, num_layers, microbatch)
    return found.tokens_per_s if found.fits_memory else None


def gains(num_layers: int, microbatch: int) -> list[float | None]:
    """Return the throughput of angel_ptm over that of deepspeed, less 1, over cached bytes; print them."""
    before = tokens_per_s("{manager: deepspeed}", num_layers, microbatch)
    found: list[float | None] = []
    for cached in CACHED:
        memory = "{manager: angel_ptm, gathered: 5 GB%s}" % (f", cached: {cached} GB" if cached else "")
        after = tokens_per_s(memory, num_layers, microbatch)
        found.append(None if before is None or after is None else after / before - 1)
    shown = " | ".join("-" if each is None else f"{each:+.0%}" for each in found)
    click.echo(f"| {num_layers} | {microbatch} | {'-' if before is None else f'{before:,.0f}'} | {shown} |")
    return found


def largest(name: str) -> float:
    """Return the parameters of the largest model of a manager; print it."""
    memory, fits, too_many = MANAGERS[name], FITS, TOO_MANY
    parameters = parameters_of(summary_of(memory, fits))
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        found = summary_of(memory, middle)
        if found.fits_memory:
            fits, parameters = middle, parameters_of(found)
        else:
            too_many = middle
    click.echo(f"| {name} | {fits} | {parameters / 1e9:.1f} billion |")
    return float(parameters)


def parameters_of(found: StepSummary) -> int:
    """Return the parameters of the model of a summary."""
    assert found.resolved is not None
    return found.resolved.num_parameters


def draw(found: Mapping[int, Sequence[Sequence[float | None]]], path: Path) -> None:
    """Draw the gains over layers, a plot per micro-batch, with the published figure."""
    figure = Figure(figsize=(9.0, 3.0), layout="constrained")
    for axes, microbatch in zip(figure.subplots(1, len(MICROBATCHES), sharey=True), MICROBATCHES, strict=True):
        for column, cached in enumerate(CACHED):
            points = [(n, row[column]) for n, row in zip(LAYERS, found[microbatch], strict=True)]
            shown = [(n, 100 * gain) for n, gain in points if gain is not None]
            axes.plot(*zip(*shown, strict=True), "o-", label=f"{cached} GB cached" if cached else "nothing cached")
        axes.axhline(100 * MORE_TOKENS, color="black", linewidth=0.8, linestyle=":", label="Angel-PTM's abstract")
        axes.set(xlabel="layers of 0.8 billion", title=f"micro-batches of {microbatch}")
    figure.axes[0].set_ylabel("more tokens per second, %")
    figure.axes[-1].legend(loc="center")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the tables and draw the picture."""
    mpl.rcParams["svg.hashsalt"] = "meshtwin"
    found = {microbatch: [gains(layers, microbatch) for layers in LAYERS] for microbatch in MICROBATCHES}
    draw(found, Path(__file__).parent / "angel.svg")
    most = {name: largest(name) for name in MANAGERS}
    for name, parameters in most.items():
        click.echo(f"{name}: {parameters / most['deepspeed'] - 1:+.1%} against deepspeed (published {LARGER:+.1%})")


if __name__ == "__main__":
    main()
