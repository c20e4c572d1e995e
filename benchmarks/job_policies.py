"""ONES beside other policies on elastic jobs like those of its trace: ``python -m benchmarks.job_policies``.

Mean completion times over seeds, and by how much that of ONES is shorter, with the 95 % interval of the seeds. All
policies meet the same jobs. ``ones`` changes GPUs in 1 s, as its authors state; all others need 30 s, and those that
share GPUs out anew decide every 60 s. With fewer nodes there are fewer jobs at the same load of a GPU.

With ``--published`` all are as their authors state them, as far as that is known. ONES knows the epochs of 20 past
jobs, and it alone makes the batch grow with the GPUs. Durations are predicted, from the same past jobs. Optimus decides
every 10 min (Peng et al., EuroSys 2018). ``--speed 2``: GPUs and network are twice as fast as those of the artifact,
Quadro RTX 5000 and 56 Gbit/s. The paper has V100, of twice the memory bandwidth, and 100 Gbit/s. ``observed``: speeds
are known on numbers of GPUs that a job had. ``growth after two epochs``: limits double as in the code of the artifact,
which forgets when they did.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Final

from msgspec import Struct
from scipy.stats import t

from scenarios.workloads.job_mix.learned_weights import shipped_weights
from scenarios.workloads.job_mix.submitted import PAST_SEEDS
from sim.jobs.job import Job
from sim.jobs.metrics import measure
from sim.jobs.ones_mix import OnesLike
from sim.jobs.policies.learned import Learned
from sim.jobs.policies.observed import Observed
from sim.jobs.policies.ones.policy import Ones
from sim.jobs.policies.predicted import REFIT_GROWTH, Predicted
from sim.jobs.policies.preemptive import ShortestRemainingTime
from sim.jobs.policies.shares import Optimus
from sim.jobs.policies.tiresias import Tiresias
from sim.jobs.policy import Policy
from sim.jobs.simulator import Mix, simulate_jobs

GPUS_PER_NODE: Final = 4
GENERATION_S: Final = 10.0
THRESHOLDS_GPU_S: Final = (3_250.0, 7_200.0)
GAP_OF_A_GPU_S: Final = 29.97 * 64.0
"""Time between arrivals, multiplied by the GPUs: 400 jobs on 64 GPUs have the gaps of the trace."""


class Contender(Struct, frozen=True):
    """A policy of a seed. ``rescale_s``: cost of a change of GPUs; ``round_s``: time between decisions.

    ``fixed_batch``: the batch stays that of the requested GPUs.
    """

    policy: Callable[[int], Policy]
    rescale_s: float = 30.0
    round_s: float | None = None
    fixed_batch: bool = False


CONTENDERS: Final[Mapping[str, Contender]] = {
    "ones": Contender(lambda seed: Ones(seed, GENERATION_S), rescale_s=1.0),
    "tiresias": Contender(lambda _: Tiresias(THRESHOLDS_GPU_S)),
    "learned": Contender(lambda _: Learned(shipped_weights()), round_s=60.0),
    "optimus, predicted": Contender(lambda seed: Predicted(Optimus(), seed), round_s=60.0),
    "srtf, predicted": Contender(lambda seed: Predicted(ShortestRemainingTime(), seed)),
    "optimus, known": Contender(lambda _: Optimus(), round_s=60.0),
    "srtf, known": Contender(lambda _: ShortestRemainingTime()),
}


def past_jobs(seed: int) -> Sequence[Job]:
    """Return jobs that were done before those of a seed, as many as the history that the artifact of ONES loads."""
    return OnesLike(num_jobs=20).jobs((GPUS_PER_NODE,) * 16, seed + PAST_SEEDS)


SPANS_S: Final = {"": 60.0, ", every 2 min": 120.0, ", every 5 min": 300.0, ", every 10 min": 600.0}
"""Time between decisions of a learned policy, and how it is called."""


def spaced(name: str, policy: Policy) -> Mapping[str, Contender]:
    """Return a policy that decides each minute, or more seldom."""
    return {
        name + words: Contender(lambda _: policy, round_s=span_s, fixed_batch=True) for words, span_s in SPANS_S.items()
    }


def published(refit_growth: float = REFIT_GROWTH) -> Mapping[str, Contender]:
    """Return the policies as their authors state them; ``refit_growth``: of a history, from one fit to the next."""

    def ones(seed: int, *, remembers: bool) -> Ones:
        return Ones(seed, GENERATION_S, refit_growth=refit_growth, past=past_jobs(seed), remembers=remembers)

    def predicted(seed: int, policy: Policy) -> Predicted:
        return Predicted(policy, seed, past_jobs(seed), refit_growth)

    return {
        "ones": Contender(lambda seed: ones(seed, remembers=True), rescale_s=1.0),
        "ones, growth after two epochs": Contender(lambda seed: ones(seed, remembers=False), rescale_s=1.0),
        "tiresias": CONTENDERS["tiresias"],
        "optimus, predicted": Contender(lambda seed: predicted(seed, Optimus()), round_s=600.0, fixed_batch=True),
        "optimus, predicted, observed": Contender(
            lambda seed: predicted(seed, Observed(Optimus())), round_s=600.0, fixed_batch=True
        ),
        "srtf, predicted": Contender(lambda seed: predicted(seed, ShortestRemainingTime())),
        **spaced("learned", Learned(shipped_weights())),
        **spaced("learned, observed", Observed(Learned(shipped_weights(observed=True)))),
    }


class Setting(Struct, frozen=True):
    """Jobs and a cluster. ``times``: GPUs and network are so many times as fast as those of the artifact."""

    num_jobs: int
    num_nodes: int
    times: float = 1.0

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return the GPUs of each node."""
        return (GPUS_PER_NODE,) * self.num_nodes

    def jobs(self, seed: int, *, fixed_batch: bool = False) -> Sequence[Job]:
        """Return the jobs of a seed."""
        gap_s = GAP_OF_A_GPU_S / sum(self.nodes)
        like = OnesLike(num_jobs=self.num_jobs, mean_gap_s=gap_s, fixed_batch=fixed_batch, times=self.times)
        return like.jobs(self.nodes, seed)


def mean_jct_s(contender: Contender, setting: Setting, seed: int) -> float:
    """Return the mean completion time of a seed's jobs under a policy."""
    mix = Mix(
        jobs=setting.jobs(seed, fixed_batch=contender.fixed_batch),
        gpus_per_node=setting.nodes,
        start_s=10.0,
        resume_s=30.0,
        rescale_s=contender.rescale_s,
        round_s=contender.round_s,
    )
    return measure(simulate_jobs(mix, contender.policy(seed))).mean_jct_s


def interval(values: Sequence[float]) -> str:
    """Return the mean of fractions in percent, and of several half of the 95 % interval (Student)."""
    if len(values) == 1:
        return f"{values[0]:.1%}"
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return f"{100.0 * fmean(values):.1f} ± {100.0 * half:.1f} %"


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--published", action="store_true")
    asked = parser.parse_args()
    contenders = published() if asked.published else CONTENDERS
    setting = Setting(asked.jobs, asked.nodes, asked.speed)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for seed in range(asked.seeds):
        for name, contender in contenders.items():
            found[name].append(mean_jct_s(contender, setting, seed))
            sys.stderr.write(f"seed {seed}: {name} {found[name][-1]:.1f} s\n")
    sys.stdout.write("| policy | mean completion time | that of ONES is shorter by |\n|---|---|---|\n")
    for name, times_s in found.items():
        shorter = [1.0 - ones_s / other_s for ones_s, other_s in zip(found["ones"], times_s, strict=True)]
        margin = "" if name == "ones" else interval(shorter)
        sys.stdout.write(f"| {name} | {fmean(times_s):,.0f} s | {margin} |\n")


if __name__ == "__main__":
    main()
