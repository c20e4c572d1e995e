"""Train the weights of ``policy: learned``: ``python -m benchmarks.learned_policy [--observed]``.

The cross-entropy method (Rubinstein, 1999), an evolution strategy: weights are drawn from normal distributions, each
draw is measured by the mean completion times of simulated mixes like that of ONES, and the distributions move to the
best draws. All draws of a generation meet the same mix, each generation another one. Seeds begin at 1,000; those below
are for comparisons of policies. ``--observed``: the policy knows speeds alone on numbers of GPUs that a job had.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import yaml
from msgspec import Struct, structs

from scenarios.workloads.job_mix.learned_weights import SHIPPED, SHIPPED_OBSERVED
from sim.jobs.metrics import measure
from sim.jobs.ones_mix import OnesLike
from sim.jobs.policies.learned import Learned, Weights
from sim.jobs.policies.observed import Observed
from sim.jobs.policy import Policy
from sim.jobs.simulator import Mix, simulate_jobs

NAMES: Final = tuple(field.name for field in structs.fields(Weights))
FIRST_SEED: Final = 1_000
GAP_OF_A_GPU_S: Final = 29.97 * 64.0
"""Time between arrivals, multiplied by the GPUs: the load of the trace of ONES."""
ELITE: Final = 4
"""One of so many draws moves the distributions."""
KEPT_SPREAD: Final = 0.2
"""Standard deviation that is added, so that the search does not end early; it falls linearly to 0."""


class Training(Struct, frozen=True, kw_only=True):
    """What a training does, and the cluster and the jobs by which it measures.

    ``observed``: speeds are known on numbers of GPUs that a job had, and else on all. ``round_s``: between decisions.
    """

    generations: int
    draws: int
    num_jobs: int
    num_nodes: int
    observed: bool = False
    round_s: float = 60.0


class Trained(Struct, frozen=True):
    """Weights, and the mean completion time of the best draws of each generation."""

    weights: Weights
    best_s: Sequence[float]


def mix_of(training: Training, seed: int) -> Mix:
    """Return a mix of jobs in rounds, at the load of the trace of ONES."""
    nodes = (4,) * training.num_nodes
    jobs = OnesLike(num_jobs=training.num_jobs, mean_gap_s=GAP_OF_A_GPU_S / sum(nodes)).jobs(nodes, seed)
    return Mix(jobs=jobs, gpus_per_node=nodes, start_s=10.0, resume_s=30.0, rescale_s=30.0, round_s=training.round_s)


def mean_jct_s(weights: Weights, training: Training, seed: int) -> float:
    """Return the mean completion time of a mix under the policy."""
    policy: Policy = Observed(Learned(weights)) if training.observed else Learned(weights)
    return measure(simulate_jobs(mix_of(training, seed), policy)).mean_jct_s


def trained(training: Training, told: Callable[[str], object]) -> Trained:
    """Return the mean of the last distribution. ``told``: called with a line about each generation."""
    random = np.random.default_rng(0)
    mean, spread = np.zeros(len(NAMES)), np.ones(len(NAMES))
    best_s = []
    for generation in range(training.generations):
        drawn = mean + spread * random.standard_normal((training.draws, len(NAMES)))
        times_s = np.array([mean_jct_s(Weights(*row), training, FIRST_SEED + generation) for row in drawn.tolist()])
        elite = np.argsort(times_s, kind="stable")[: max(2, training.draws // ELITE)]
        mean, spread = drawn[elite].mean(axis=0), drawn[elite].std(axis=0)
        spread = spread + KEPT_SPREAD * (1.0 - (generation + 1) / training.generations)
        best_s.append(float(times_s[elite].mean()))
        told(f"generation {generation}: best {best_s[-1]:.0f} s, median {np.median(times_s):.0f} s")
    return Trained(Weights(*(round(each, 3) for each in mean.tolist())), best_s)


def main() -> None:
    """Train, and write the weights with the command that made them."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--observed", action="store_true")
    parser.add_argument("--round", type=float, default=60.0, help="seconds between decisions")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    training = Training(
        generations=asked.generations,
        draws=asked.draws,
        num_jobs=asked.jobs,
        num_nodes=asked.nodes,
        observed=asked.observed,
        round_s=asked.round,
    )
    found = trained(training, lambda line: sys.stderr.write(f"{line}\n"))
    options = f"--generations {asked.generations} --draws {asked.draws} --jobs {asked.jobs} --nodes {asked.nodes}"
    options += " --observed" * asked.observed + f" --round {asked.round:g}" * (asked.round != 60.0)
    content = {
        "made_by": f"python -m benchmarks.learned_policy {options}",
        "best_mean_jct_s": [round(each) for each in found.best_s],
        "weights": structs.asdict(found.weights),
    }
    out = asked.out or (SHIPPED_OBSERVED if asked.observed else SHIPPED)
    out.write_text(yaml.safe_dump(content, sort_keys=False, width=120), encoding="utf-8")


if __name__ == "__main__":
    main()
