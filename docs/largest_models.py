"""The largest models of docs/memory.md: most layers that fit on one node, by manager of memory, found by bisection.

.venv/bin/python docs/largest_models.py
"""

from typing import Final

import click

from scenarios import api

PAPER: Final = "papers/angel-ptm-gpt-29b-8-a100"
MANAGERS: Final = {
    "deepspeed": "memory={manager: deepspeed}",
    "angel_ptm": "memory={manager: angel_ptm, gathered: 5 GB}",
    "angel_ptm, 28 GB cached": "memory={manager: angel_ptm, gathered: 5 GB, cached: 28 GB}",
}
FITS, TOO_MANY = 64, 128
"""Numbers of layers between which the most is searched."""


def parameters(num_layers: int, memory: str) -> int | None:
    """Return the parameters of a model that fits; None for one that does not."""
    found = api.simulate(PAPER, [memory, f"model.num_layers={num_layers}"]).summary
    return found.resolved.num_parameters if found.fits_memory else None


def main() -> None:
    """Print the most layers, and their parameters, of each manager."""
    for name, memory in MANAGERS.items():
        fits, too_many = FITS, TOO_MANY
        if (largest := parameters(fits, memory)) is None:
            click.echo(f"| {name} | fewer than {fits} | |")
            continue
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if (found := parameters(middle, memory)) is None:
                too_many = middle
            else:
                fits, largest = middle, found
        click.echo(f"| {name} | {fits} | {largest / 1e9:.1f} billion |")


if __name__ == "__main__":
    main()
