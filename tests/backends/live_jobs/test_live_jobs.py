"""Job mixes on real processes: elastic trainings lose nothing, whatever a policy does to them."""

import os
import signal
from multiprocessing import active_children
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.execution.jobs import JobsExecution, JobsRequest, LiveTraining, Perceptron
from backends.registry import load_torch_backend
from sim.jobs.active import ActiveJob
from sim.jobs.job import Job, elastic_job
from sim.jobs.policies.ones.policy import Ones
from sim.jobs.policies.queues import FifoStrict
from sim.jobs.policies.tiresias import Tiresias
from sim.jobs.policy import Change, Decision, Policy, View
from sim.jobs.speed.speed import ScaledBatchSpeed
from sim.jobs.speed.step_time import StepTime
from sim.jobs.training import Training

SLOTS = (4,)
SIZES = (1, 2, 1, 4, 2, 1)
NETWORK = Perceptron(num_features=8, hidden_size=16, num_classes=3)


class KillingOnce:
    """A policy that does what another one does, and kills the process of a slot once every job has an epoch to lose."""

    watched_gpu_s = ()
    ranking = None

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy
        self._others = active_children()

    def start(self) -> tuple[Any, bool]:
        """Return the other one's state, and that nothing was killed."""
        return self._policy.start(), False

    def decide(self, state: tuple[Any, bool], view: View) -> tuple[tuple[Any, bool], Decision]:
        """Return the other one's decision; look again soon."""
        inner, killed = state
        if not killed and not view.free_gpus and all(each.epochs(view.now_s) > 1 for each in view.running.values()):
            ours = [process for process in active_children() if process not in self._others]
            os.kill(ours[-1].pid or 0, signal.SIGKILL)
            killed = True
        inner, decision = self._policy.decide(inner, view)
        return (inner, killed), Decision(decision.changes, view.now_s + 0.01)


def pairs(sizes: tuple[int, ...], num_epochs: int) -> tuple[list[Job], list[LiveTraining]]:
    """Return jobs that ask for some GPUs, and their trainings, the later ones longer by some steps."""
    step = StepTime(compute_s=2e-3, compute_per_sample_s=0.0)
    speed = ScaledBatchSpeed(step=step, local_batch=8, learning_rate=0.02, most_learning_rate=0.06)
    jobs, trainings = [], []
    for place, num_gpus in enumerate(sizes):
        samples = 100 + 12 * place
        trainings.append(
            LiveTraining(network=NETWORK, samples_per_epoch=samples, num_epochs=num_epochs, batches=speed, seed=place)
        )
        elastic = Training(samples_per_epoch=samples, num_epochs=num_epochs, speed=speed, most_gpus=4)
        jobs.append(elastic_job(str(place), 0.01 * place, num_gpus, elastic, 1))
    return jobs, trainings


def run(policy: Policy, sizes: tuple[int, ...] = SIZES, num_epochs: int = 5) -> JobsExecution:
    """Return what came of jobs, and assert the laws of every policy."""
    jobs, trainings = pairs(sizes, num_epochs)
    request = JobsRequest(
        jobs=jobs, trainings=trainings, slots_per_node=SLOTS, policy=policy, check=True, timeout_s=120.0
    )
    found = load_torch_backend().run_jobs(request)
    assert [each.job.id for each in found.record.jobs] == [job.id for job in jobs]
    assert all(each.identical for each in found.handed_over)
    assert [each.job_id for each in found.handed_over if each.event == "finish"] != []
    assert set(found.compared) == {job.id for job in jobs}
    assert all(max(each.loss_error, each.parameter_error) < 1e-5 for each in found.compared.values())
    held = sum((each.end_s - each.start_s) * count for each in found.record.allocations for _, count in each.placement)
    parts = sum(job.useful_gpu_s + job.restart_gpu_s + job.idle_gpu_s + job.lost_gpu_s for job in found.record.jobs)
    assert held == pytest.approx(parts, rel=1e-9)
    assert all(each.restart_gpu_s > 0.0 for each in found.record.jobs)
    return found


def test_ones_rescales_trainings_that_lose_nothing() -> None:
    """The batch changes while jobs run, and losses are those of one process with the same batches."""
    found = run(Ones(seed=0, generation_s=0.03, population_size=4, refit_growth=4.0))
    sizes = {name: {step.batch_size for step in steps[:-1]} for name, steps in found.steps.items()}
    assert any(each.event in ("rescale", "resume") for each in found.handed_over)
    assert any(len(each) > 1 for each in sizes.values())
    assert all(steps[-1].loss < 0.7 * steps[0].loss for steps in found.steps.values())


def test_tiresias_preempts_trainings_that_lose_nothing() -> None:
    """Jobs stop when they have attained some service, and go on from what was saved."""
    found = run(Tiresias((0.05,)))
    stopped = {each.job_id for each in found.handed_over if each.event == "stop"}
    assert stopped
    assert stopped <= {each.job_id for each in found.handed_over if each.event == "resume"}


def test_killed_worker_is_replaced_and_no_job_is_lost() -> None:
    """A process is killed under a job of two slots: the job waits, starts again, and ends like the others."""
    found = run(KillingOnce(FifoStrict()), sizes=(2, 2, 4), num_epochs=12)
    assert found.num_ended == 1
    assert [made.num_gpus for made in found.record.decisions if made.why == "a worker ended"] == [0]
    assert sum(job.num_failures for job in found.record.jobs) == 1
    assert sum(job.num_preemptions for job in found.record.jobs) == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_jobs_keep_their_slots_where_they_can(data: st.DataObject) -> None:
    """Slots are those that were asked for, no two jobs share one, and a job that shrinks or stays keeps its own."""
    from backends.torch.jobs.slot_choice import chosen_slots, placement_of  # noqa: PLC0415 - needs torch's room alone

    nodes = (3, 2, 4)
    slots = data.draw(st.permutations(range(9)))
    cuts = sorted(data.draw(st.lists(st.integers(0, 9), min_size=3, max_size=3)))
    held = {place: tuple(slots[begin:end]) for place, (begin, end) in enumerate(zip([0, *cuts], cuts, strict=False))}
    held = {place: team for place, team in held.items() if team}
    jobs = pairs((1, 1, 1, 1), 1)[0]
    active = [ActiveJob(job, index, 0.0, placement_of(held.get(index, ()), nodes)) for index, job in enumerate(jobs)]
    left = 9 - sum(len(team) for team in held.values())
    changes = []
    for each in active:
        wanted = data.draw(st.integers(0, left + len(held.get(each.index, ()))))
        if data.draw(st.booleans()):
            left -= wanted - len(held.get(each.index, ()))
            changes.append(Change(each, wanted, "drawn"))
    found = chosen_slots(changes, held, nodes)
    after = {index: team for index, team in held.items() if index not in {change.job.index for change in changes}}
    taken = [slot for team in (*after.values(), *found.values()) for slot in team]
    assert len(taken) == len(set(taken))
    assert {index: len(team) for index, team in found.items()} == {
        change.job.index: change.num_gpus for change in changes if change.num_gpus
    }
    alone = [change for change in changes if change.num_gpus]
    if len(alone) == 1 and held.get(alone[0].job.index):
        index = alone[0].job.index
        again = chosen_slots([Change(active[index], len(held[index]), "same", placement_of(held[index], nodes))],
                             held, nodes)  # fmt: skip
        assert again[index] == held[index]
