"""Order is part of the result: two runs write the same bytes, wall-clock readings of the engine apart."""

import json
import os
import subprocess
import sys
from pathlib import Path

from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate

FILES = {"summary.json", "timeline.json.gz", "timeline.parquet", "report.html"}
NAMES = (
    "textbook-interleaved", "tiny-gpt-2x2", "gpt-3.6b-data-parallel-64-a100", "llama-2-70b-zero1-64-a100",
    "llama-2-13b-fsdp-64-a100", "mixtral-8x7b-64-h100",
)  # fmt: skip
SIMULATE = """
import sys
from scenarios.cli import main

for path, folder in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    advice = "quick" if "tiny" in path else "none"
    try:
        main([path, "--out", folder, "--advice", advice])
    except SystemExit as done:
        if done.code:
            raise
"""


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
    """The installed command writes identical files under two values of PYTHONHASHSEED.

    One process per value simulates all scenarios, one after the other. Advice is sought for a small one.
    """
    for hash_seed in ("1", "4242"):
        runs = [
            (str(root / "scenarios" / "library" / f"{name}.yaml"), str(tmp_path / hash_seed / name)) for name in NAMES
        ]
        command = [sys.executable, "-c", SIMULATE, *(argument for run in runs for argument in run)]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        subprocess.run(command, env=environment, check=True, capture_output=True)
    for name in NAMES:
        same(tmp_path / "1" / name, tmp_path / "4242" / name)


def test_runs_of_one_process_are_the_same(root: Path, tmp_path: Path) -> None:
    """A run leaves nothing behind that the next one could see."""
    for folder in ("first", "second"):
        simulate(load_scenario(root / "scenarios" / "library" / "textbook-1f1b.yaml")).write(tmp_path / folder)
    same(tmp_path / "first", tmp_path / "second")
