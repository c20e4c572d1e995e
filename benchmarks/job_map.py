"""Where ONES is ahead of other policies: ``python -m benchmarks.job_map map.csv``.

The settings are those of ``benchmarks.job_policies --published``, on GPUs of several speeds and in several numbers.
Jobs arrive for 100 min, half as long as in the trace, at the same rate for a GPU. The load is physical: the GPU-seconds
that they ask for, of those that the cluster has in this time. A run adds the rows that the file lacks, seed by seed,
and prints the table of what is there. Predictors are fitted anew when their history has doubled, which halves the time.
"""

import csv
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Final

from benchmarks.job_policies import Setting, interval, mean_jct_s, published

SPEEDS: Final = (1.0, 1.5, 2.0)
JOBS: Final = {4: 50, 8: 100, 16: 200}
"""Number of jobs, by the number of nodes."""
SETTINGS: Final = [Setting(num_jobs, num_nodes, times) for num_nodes, num_jobs in JOBS.items() for times in SPEEDS]
CONTENDERS: Final = published(refit_growth=2.0)
COLUMNS: Final = ("gpus", "jobs", "speed", "seed", "policy", "mean_jct_s")
Key = tuple[int, int, float, int, str]


def key_of(setting: Setting, seed: int, policy: str) -> Key:
    """Return what tells a row from all others."""
    return sum(setting.nodes), setting.num_jobs, setting.times, seed, policy


def asked_of_cluster(setting: Setting, seed: int) -> float:
    """Return the GPU-seconds that jobs ask for, of those that the cluster has until the last one arrives."""
    jobs = setting.jobs(seed)
    return sum(job.num_gpus * job.duration_s for job in jobs) / (sum(setting.nodes) * jobs[-1].arrival_s)


def rows_of(path: Path) -> dict[Key, float]:
    """Return the mean completion times that a file has."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for row in rows:
        key = int(row["gpus"]), int(row["jobs"]), float(row["speed"]), int(row["seed"]), row["policy"]
        found[key] = float(row["mean_jct_s"])
    return found


def add_missing(path: Path, settings: Sequence[Setting], names: Sequence[str], seeds: range) -> None:
    """Simulate what a file lacks, and add each row as it is found."""
    known = rows_of(path)
    if not known:
        path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    for seed, setting, name in product(seeds, settings, names):
        key = key_of(setting, seed, name)
        if key not in known:
            with path.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow([*key, round(mean_jct_s(CONTENDERS[name], setting, seed), 1)])


def table_of(known: Mapping[Key, float], names: Sequence[str], seeds: range) -> Iterator[str]:
    """Yield the lines of the table: by how much the completion times of ONES, the first name, are shorter."""
    ones, *others = names
    yield f"| GPUs | speed | asked for | {ones} | {' | '.join(others)} |"
    yield "|" + "---|" * (4 + len(others))
    for setting in SETTINGS:
        whole = [seed for seed in seeds if all(key_of(setting, seed, name) in known for name in names)]
        if not whole:
            continue
        times_s = {name: [known[key_of(setting, seed, name)] for seed in whole] for name in names}
        asked = fmean(asked_of_cluster(setting, seed) for seed in whole)
        first = f"{sum(setting.nodes)} | {setting.times:g} | {asked:.2f}, {len(whole)} seeds"
        cells = " | ".join(_cell(times_s[ones], times_s[name]) for name in others)
        yield f"| {first} | {fmean(times_s[ones]):,.0f} s | {cells} |"


def _cell(own_s: Sequence[float], others_s: Sequence[float]) -> str:
    """Return a policy's mean completion time, and by how much that of ONES is shorter."""
    shorter = [1.0 - own / other for own, other in zip(own_s, others_s, strict=True)]
    return f"{fmean(others_s):,.0f} s, {interval(shorter)}"


def main() -> None:
    """Add the missing rows, and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--policies", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--table", action="store_true", help="simulate nothing")
    asked = parser.parse_args()
    seeds = range(asked.seeds)
    if not asked.table:
        settings = [each for each in SETTINGS if each.num_nodes in asked.nodes]
        add_missing(asked.path, settings, asked.policies, seeds)
    sys.stdout.write("\n".join(table_of(rows_of(asked.path), asked.policies, seeds)) + "\n")


if __name__ == "__main__":
    main()
