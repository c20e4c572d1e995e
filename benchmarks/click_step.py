"""A cached step of DLRM on one device, measured and simulated.

.venv/bin/python -m benchmarks.click_step --device cuda --node hgx-h200

Tables are those of Criteo Kaggle with a sixth of the rows, so that they are drawn in seconds; batches have 16,384
samples. With ``--device cpu --part 3000 --batch 16`` the same runs in seconds on any machine.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from scenarios.library.shipped import FOLDER
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.workloads.executing import Device, ExecutionOptions
from scenarios.workloads.loading import load_scenario

KAGGLE: Path = FOLDER / "papers" / "cached-embedding-dlrm-kaggle-a100.yaml"
STEPS = 8


def scenario_file(folder: Path, node: str, part: int, batch_size: int) -> Path:
    """Write the scenario with a part of the rows of each table; return its path."""
    keys: dict[str, Any] = dict(read_document(KAGGLE).data)
    keys["tables"] = [{**table, "num_rows": -(-table["num_rows"] // part)} for table in keys["tables"]]
    keys["trace"] = {"batch_size": batch_size, "num_batches": STEPS, "num_unmeasured": 0}
    keys["cluster"] = {"node": node, "num_nodes": 1, "devices_per_node": 1}
    path = folder / "clicks.yaml"
    path.write_text(json.dumps(keys), encoding="utf-8")  # JSON is YAML
    return path


def measured(path: Path, options: ExecutionOptions, *overrides: str) -> dict[str, Any]:
    """Return the summary of an execution beside its simulation."""
    scenario = load_scenario(path, overrides)
    found = scenario.workload.execute(scenario, options)
    assert found is not None
    return found.as_json()


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@click.option("--node", default="hgx-h200", show_default=True)
@click.option("--part", type=click.IntRange(min=1), default=6, show_default=True, help="One row of so many is kept.")
@click.option("--batch", type=click.IntRange(min=1), default=16384, show_default=True)
def main(device: Device, node: str, part: int, batch: int) -> None:
    """Print measured and simulated times of the step, with rows cached and with all rows on the device."""
    options = ExecutionOptions(device=device, steps=STEPS, timing="step")
    with tempfile.TemporaryDirectory() as folder:
        path = scenario_file(Path(folder), node, part, batch)
        for overrides in (
            ("cache.fraction=0.015",),
            ("cache.fraction=0.015", "cache.order=fetch_first"),
            ("cache.fraction=1",),
        ):
            found = measured(path, options, *overrides)
            executed, simulated = (1e3 * found[key] for key in ("iteration_time_s", "simulated_iteration_time_s"))
            steps = ", ".join(f"{1e3 * time_s:.2f}" for time_s in found["iteration_times_s"])
            click.echo(f"{' '.join(overrides)}: {executed:.2f} ms, simulated {simulated:.2f} ms; steps of {steps} ms")
        timed = measured(path, replace(options, timing="op"), "cache.fraction=0.015")
        click.echo(f"ops the same: {timed['same_work']}, memory the same: {timed['same_peak_memory']}")
        small = replace(options, check=True, steps=4)
        checked = measured(scenario_file(Path(folder), node, 3000, 32), small, "cache.fraction=0.2")
        click.echo(f"check: {checked['max_relative_error']:.1e} off, passed: {checked['check_passed']}")


if __name__ == "__main__":
    main()
