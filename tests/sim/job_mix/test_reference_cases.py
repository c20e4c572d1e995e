"""Policies on one node with four GPUs and five jobs, worked out by hand: completion times, makespan and preemptions."""

import pytest

from sim.jobs.active import ActiveJob
from sim.jobs.errors import JobsError
from sim.jobs.job import Job
from sim.jobs.metrics import measure
from sim.jobs.policies.preemptive import LeastAttainedService, ShortestRemainingService, ShortestRemainingTime
from sim.jobs.policies.queues import FifoFitFirst, FifoStrict, ShortestJobFirst
from sim.jobs.policies.themis import Themis
from sim.jobs.policies.tiresias import Tiresias, gittins_index
from sim.jobs.policy import Policy, View
from sim.jobs.simulator import Mix, simulate_jobs

JOBS = (
    Job("1", 0.0, 2, 100.0), Job("2", 10.0, 4, 20.0), Job("3", 20.0, 1, 30.0), Job("4", 30.0, 2, 40.0),
    Job("5", 35.0, 1, 10.0),
)  # fmt: skip
TIRESIAS = Tiresias((100.0,))


@pytest.mark.parametrize(
    ("policy", "resume_s", "jcts_s", "makespan_s", "preemptions"),
    [
        (FifoStrict(), 0.0, [100, 110, 130, 130, 95], 160, [0, 0, 0, 0, 0]),
        (FifoFitFirst(), 0.0, [100, 110, 30, 60, 10], 120, [0, 0, 0, 0, 0]),
        (ShortestJobFirst(), 0.0, [100, 110, 30, 60, 10], 120, [0, 0, 0, 0, 0]),
        (ShortestRemainingTime(), 0.0, [150, 20, 40, 40, 10], 150, [1, 0, 0, 0, 0]),
        (ShortestRemainingTime(), 5.0, [155, 20, 40, 40, 10], 155, [1, 0, 0, 0, 0]),
        (ShortestRemainingService(), 0.0, [140, 50, 30, 50, 10], 140, [2, 1, 0, 1, 0]),
        (TIRESIAS, 0.0, [120, 60, 30, 80, 10], 120, [1, 0, 0, 0, 0]),
        (TIRESIAS, 5.0, [125, 60, 30, 80, 10], 125, [1, 0, 0, 0, 0]),
    ],
)
def test_policies_are_exact(
    policy: Policy, resume_s: float, jcts_s: list[int], makespan_s: int, preemptions: list[int]
) -> None:
    """Each policy gives the schedule that follows from its rule, restarts included."""
    record = simulate_jobs(Mix(jobs=JOBS, gpus_per_node=(4,), resume_s=resume_s), policy)
    assert [job.jct_s for job in record.jobs] == jcts_s
    assert record.makespan_s == makespan_s
    assert [job.num_preemptions for job in record.jobs] == preemptions


def test_measures_of_strict_fifo() -> None:
    """400 useful of 640 GPU-seconds; the five queueing times are known."""
    found = measure(simulate_jobs(Mix(jobs=JOBS, gpus_per_node=(4,)), FifoStrict()))
    assert (found.mean_jct_s, found.utilisation, found.useful_fraction) == (113.0, 0.625, 1.0)
    assert found.mean_queueing_s == (0 + 90 + 100 + 90 + 85) / 5


def test_decisions_are_logged_with_their_reason() -> None:
    """SRTF stops the first job for the second, and says why."""
    record = simulate_jobs(Mix(jobs=JOBS, gpus_per_node=(4,)), ShortestRemainingTime())
    shown = [(made.at_s, made.job_id, made.num_gpus) for made in record.decisions]
    assert shown[:3] == [(0.0, "1", 2), (10.0, "1", 0), (10.0, "2", 4)]
    assert record.decisions[1].why == "others come first: least remaining time"


def test_rounds_hold_gpus_until_they_end() -> None:
    """A job of 50 s in rounds of 60 s is done after 50 s; the next starts after 60 s, and 20 GPU-seconds are idle."""
    jobs = [Job("a", 0.0, 2, 50.0), Job("b", 1.0, 2, 50.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(2,), round_s=60.0), FifoStrict())
    assert [job.finish_s for job in record.jobs] == [50.0, 110.0]
    assert [job.idle_gpu_s for job in record.jobs] == [20.0, 20.0]


def test_least_attained_service_shares_in_turns() -> None:
    """Two equal jobs on one GPU change places every quantum, and end one quantum apart."""
    jobs = [Job("a", 0.0, 1, 30.0), Job("b", 0.0, 1, 30.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,)), LeastAttainedService(10.0))
    assert [job.jct_s for job in record.jobs] == [50.0, 60.0]


def test_arrivals_do_not_shorten_the_quantum() -> None:
    """Each decision plans one next: jobs that arrive 1 s apart take turns of 10 s, and pay no more restarts."""
    jobs = [Job(str(place), float(place), 1, 20.0) for place in range(3)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,), resume_s=4.0), LeastAttainedService(10.0))
    started_s, turns_s = dict[str, float](), list[float]()
    for made in record.decisions:
        if made.num_gpus:
            started_s[made.job_id] = made.at_s
        elif started_s[made.job_id] >= 2.0:
            turns_s.append(made.at_s - started_s[made.job_id])
    assert len(turns_s) > 3
    assert min(turns_s) >= 10.0


def test_starved_jobs_return_to_the_first_queue() -> None:
    """A fallen job runs at 20 s and 40 s, after it waited for as long as it ran; without promotion it ends last."""
    jobs = [Job("old", 0.0, 1, 30.0), *(Job(f"{place}", 5.0, 1, 10.0) for place in range(4))]
    mix = Mix(jobs=jobs, gpus_per_node=(1,))
    ends = [simulate_jobs(mix, Tiresias((10.0,), starvation)).jobs[0].finish_s for starvation in (0.0, 1.0)]
    assert ends == [70.0, 50.0]


def test_promotion_counts_run_time_anew() -> None:
    """Thresholds of 60 s, knob 0.5: each fallen job waits 30 s, and later promotions come no later than the first."""
    jobs = [Job("a", 0.0, 1, 200.0), Job("b", 10.0, 1, 200.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=(1,)), Tiresias((60.0,), starvation=0.5))
    starts = [(made.at_s, made.job_id) for made in record.decisions if made.num_gpus]
    assert starts == [(0, "a"), (60, "b"), (90, "a"), (150, "b"), (180, "a"), (240, "b"), (270, "a"), (290, "b")]
    assert [job.finish_s for job in record.jobs] == [290.0, 400.0]


def test_waiting_job_of_the_first_queue_keeps_its_service() -> None:
    """Only fallen jobs are promoted, however long a job of the first queue waits."""
    kept, fallen = (ActiveJob(Job(name, 0.0, 1, 100.0), index, 0.0) for index, name in enumerate(("kept", "fallen")))
    for each, ran_s in ((kept, 30.0), (fallen, 60.0)):
        each.start(0.0, ((0, 1),), 0.0)
        each.stop(ran_s)
    view = View(now_s=1000.0, waiting=[kept, fallen], running={}, free_gpus=0, waiting_gpus=2, gpus_per_node=(1,))
    policy = Tiresias((60.0,), starvation=1.0)
    state, _ = policy.decide(policy.start(), view)
    assert state.forgiven_gpu_s == {1: 60.0}


def test_gittins_index_of_three_services() -> None:
    """Of services 1, 4 and 10 the best quantum is 1 at first: 1 of 3 jobs is done within it, for 3 GPU-seconds."""
    assert gittins_index((1.0, 4.0, 10.0), 0.0) == 1 / 3
    assert gittins_index((1.0, 4.0, 10.0), 1.0) == max(1 / 6, 2 / 12)
    assert gittins_index((1.0, 4.0, 10.0), 10.0) == 0.0


def test_gittins_index_orders_the_first_queue() -> None:
    """A job near the usual service comes before a new one."""
    jobs = [Job("new", 5.0, 1, 10.0), Job("near", 0.0, 1, 10.0)]
    mix = Mix(jobs=jobs, gpus_per_node=(1,))
    record = simulate_jobs(mix, Tiresias((100.0,), services_gpu_s=(10.0,)))
    assert [job.finish_s for job in record.jobs] == [10.0, 20.0]


def test_job_larger_than_the_cluster_is_refused() -> None:
    """It would wait for ever."""
    with pytest.raises(JobsError, match="job 2 needs 4 GPUs, where the cluster has 2"):
        Mix(jobs=JOBS, gpus_per_node=(2,))


def test_themis_leases_to_the_job_that_is_treated_least_fairly() -> None:
    """One GPU, jobs of 100 s and 10 s that arrive at once, leases of 20 s: ratios by hand.

    At 0 s both expect their own time on half of the cluster: 1/2 each, and the first wins. At 20 s it expects 100 of
    200 s, the second 30 of 20 s: the second runs to its end at 30 s. Then the first needs 80 s more.
    """
    jobs = [Job("long", 0.0, 1, 100.0), Job("short", 0.0, 1, 10.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=[1]), Themis(20.0))
    assert [job.finish_s for job in record.jobs] == [110.0, 30.0]
    assert [(made.at_s, made.job_id, made.num_gpus) for made in record.decisions] == [
        (0.0, "long", 1), (20.0, "long", 0), (20.0, "short", 1), (30.0, "long", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("by_fall", "preemptions"), [(False, [0, 1, 0]), (True, [1, 0, 0])])
def test_fallen_jobs_of_tiresias_queue_by_arrival_or_by_fall(by_fall: bool, preemptions: list[int]) -> None:
    """The first job falls at 100 s, the second at 51 s; from 150 s on two GPUs are left, too few for both."""
    jobs = [Job("a", 0.0, 1, 1000.0), Job("b", 1.0, 2, 1000.0), Job("c", 150.0, 2, 40.0)]
    record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=[4]), Tiresias((100.0,), by_fall=by_fall))
    assert [job.num_preemptions for job in record.jobs] == preemptions
