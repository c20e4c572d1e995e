"""Order is part of the result: two runs write the same bytes, wall-clock readings of the engine apart."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.command_line import group
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.advising import trials
from scenarios.workloads.steps.running import simulate

FILES = {"summary.json", "timeline.json.gz", "timeline.parquet", "report.html"}
RUNS = {
    "textbook-interleaved": ("none",),
    "tiny-gpt-2x2": ("quick",),
    "gpt-3.6b-data-parallel-64-a100": ("none", "model.num_layers=4"),
    "llama-2-70b-zero1-64-a100": ("none", "model.num_layers=8", "training.global_batch_size=64"),
    "llama-2-13b-fsdp-64-a100": ("none", "model.num_layers=4"),
    "mixtral-8x7b-64-h100": ("none", "model.num_layers=16", "training.global_batch_size=64"),
}
"""Scenarios of the library: the level of advice, and what makes them small."""
ADVICE_S = 0.3
"""Predicted seconds of trials, enough for several."""
SIMULATED = """
import sys
from pathlib import Path
from tests.architecture.test_determinism import simulated

simulated(Path(sys.argv[1]))
"""


def simulated(folder: Path) -> None:
    """Simulate all scenarios by the command line, each into a folder of its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "QUICK_S", ADVICE_S)
        for name, (advice, *settings) in RUNS.items():
            words = ["--advice", advice, *(word for setting in settings for word in ("--set", setting))]
            group([name, *words, "--out", str(folder / name)], standalone_mode=False)


def written(folder: Path) -> dict[str, bytes]:
    """Return the files of a run; of the summary, what does not depend on the clock of this machine."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    summary = json.loads(files["summary.json"])
    assert summary["engine"].pop("wall_time_s") > 0
    return files | {"summary.json": json.dumps(summary).encode()}


def same(first: Path, second: Path) -> None:
    """Assert that two runs wrote the same files."""
    a, b = written(first), written(second)
    assert set(a) == set(b) == FILES
    assert [name for name in sorted(FILES) if a[name] != b[name]] == []


def test_hash_seeds_change_nothing(root: Path, tmp_path: Path) -> None:
    """A process with another value of PYTHONHASHSEED writes the files that this one writes.

    It simulates all scenarios, one after the other. Advice is sought for a small one.
    """
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = os.environ | {"PYTHONHASHSEED": other, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", SIMULATED, str(tmp_path / "other")]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    simulated(tmp_path / "this")
    for name in RUNS:
        same(tmp_path / "this" / name, tmp_path / "other" / name)


def test_runs_of_one_process_are_the_same(root: Path, tmp_path: Path) -> None:
    """A run leaves nothing behind that the next one could see."""
    for folder in ("first", "second"):
        simulate(load_scenario(root / "scenarios" / "library" / "textbook-1f1b.yaml")).write(tmp_path / folder)
    same(tmp_path / "first", tmp_path / "second")
