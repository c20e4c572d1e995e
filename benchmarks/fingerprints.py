"""Fingerprints of all results of the shipped scenarios. A change that keeps all results keeps all fingerprints.

    python -m benchmarks.fingerprints record FILE.json     # before a change
    python -m benchmarks.fingerprints compare FILE.json    # after it: prints the differences, exit code 1 if any

A scenario has one sha256 for each key of its summary, for ``timeline.parquet`` and for the printed schedule. A
published table has one sha256 of its predictions.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scenarios.library.shipped import scenario_names

Fingerprints = dict[str, str]
ROOT = Path(__file__).parents[1]
TABLES = ROOT / "traces" / "published"


def main(verb: str, path: str) -> int:
    """Record fingerprints in a file, or compare present ones with the file; return the exit code."""
    found = fingerprints()
    if verb == "record":
        Path(path).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{len(found)} fingerprints in {path}")
        return 0
    known: Fingerprints = json.loads(Path(path).read_text(encoding="utf-8"))
    differing = sorted(key for key in known.keys() | found.keys() if known.get(key) != found.get(key))
    for key in differing:
        print("new" if key not in known else "gone" if key not in found else "changed", key)
    print(f"{len(differing)} of {len(known.keys() | found.keys())} fingerprints differ")
    return 1 if differing else 0


def fingerprints() -> Fingerprints:
    """Return the fingerprints of all shipped scenarios and tables; two are computed at a time."""
    tables = [path.with_suffix("") for path in sorted(TABLES.glob("*.yaml"))]
    with ThreadPoolExecutor(2) as pool:
        scenarios = pool.map(lambda name: list(of_scenario(name)), scenario_names())
        predictions = pool.map(lambda table: list(of_table(table)), tables)
        return {key: digest for found in (*scenarios, *predictions) for key, digest in found}


def of_scenario(name: str) -> Iterator[tuple[str, str]]:
    """Yield the fingerprints of a scenario's simulation results and of its schedule."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        ended = simulate(name, "--out", str(out))
        if ended.returncode:
            yield f"{name}: error", sha256(ended.stderr)
            return
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        del summary["engine"]["wall_time_s"]  # differs from run to run
        for key, value in summary.items():
            yield f"{name}: summary.{key}", sha256(json.dumps(value).encode())
        timeline = out / "timeline.parquet"
        if timeline.exists():
            yield f"{name}: timeline.parquet", sha256(timeline.read_bytes())
    schedule = simulate("schedule", name)
    shown = schedule.stdout if schedule.returncode == 0 else schedule.stderr.replace(bytes(ROOT), b"")
    yield f"{name}: schedule", sha256(shown)


def of_table(table: Path) -> Iterator[tuple[str, str]]:
    """Yield the fingerprint of the predictions of a published table."""
    ended = simulate("validate", f"{table}.yaml", "--json")
    yield f"{table.name}: predictions", sha256(ended.stdout)


def simulate(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-c", "from scenarios.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False)


def sha256(content: bytes) -> str:
    """Return the hexadecimal digest of some bytes."""
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
