"""Job mixes that are executed, from file to report."""

import json
from pathlib import Path

import pytest

from backends.execution.jobs import MeasuredJobs
from scenarios.cli import main
from scenarios.library.shipped import FOLDER
from scenarios.workloads.job_mix import execution
from scenarios.workloads.loading import load_scenario
from tests.scenarios.refusing import refuse

ELASTIC = (
    "{samples_per_epoch: 60, num_epochs: 3, scaled_batch: {local_batch_size: 8, learning_rate: 0.02, "
    "most_learning_rate: 0.04, step: {compute: 1 ms, compute_per_sample: 0 s}}}"
)
FILE = f"""\
name: two trainings
workload: job_mix
cluster: {{num_nodes: 1, devices_per_node: 2}}
jobs:
  list:
    - {{id: a, arrival: 0 s, num_gpus: 1, elastic: {ELASTIC}}}
    - {{id: b, arrival: 0 s, num_gpus: 2, elastic: {ELASTIC}}}
policy: srtf
"""
KEYS = {
    *("schema", "scenario", "seed", "policy", "num_slots", "prepare_s", "start_s", "resume_s", "rescale_s", "drift"),
    *(
        "mean_jct_s",
        "mean_jcts_s",
        "simulated_mean_jct_s",
        "makespan_s",
        "simulated_makespan_s",
        "num_hand_overs",
        "num_differing",
    ),
    *("num_ended_processes", "loss_error", "parameter_error", "passed", "jobs", "hand_overs"),
}


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    """Return a file with two jobs."""
    path = tmp_path / "mix.yaml"
    path.write_text(FILE)
    return path


def test_jobs_are_executed_and_compared(mix: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """The answers have both completion times of each job, and the page both pictures of the cluster."""
    monkeypatch.setattr(execution, "SPAN_S", 0.05)
    with pytest.raises(SystemExit) as caught:
        main(["execute", str(mix), "--check", "--repeats", "2", "--out", str(tmp_path / "out")])
    assert caught.value.code == 0
    assert "all ranks have the same bits" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(found) == KEYS
    assert found["schema"] == "meshtwin.job_mix_execution/1"
    assert found["loss_error"] < 1e-10
    assert [job["num_steps"] for job in found["jobs"]] == [24, 12]
    assert all(job["simulated_jct_s"] > 0.0 for job in found["jobs"])
    assert found["num_hand_overs"] >= 8
    assert found["jobs"][0]["measured"] == found["jobs"][1]["measured"]  # equal trainings have equal speeds
    assert [each["num_slots"] for each in found["jobs"][0]["measured"]] == [1, 2]
    assert [each["event"] for each in found["hand_overs"]].count("finish") == 2
    assert len(found["mean_jcts_s"]) == 2
    assert found["mean_jct_s"] == min(found["mean_jcts_s"])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Executed" in page
    assert "Simulated" in page


def test_the_simulation_has_the_means_of_two_measurements() -> None:
    """Of the times of a sample, so that a machine of half the speed afterwards takes half as long again in the mean."""
    before, after = (
        MeasuredJobs(
            samples_per_s=[{1: speed, 2: 2.0 * speed}], machine_shares=[{1: share, 2: 2.0 * share}],
            prepare_s=cost_s, start_s=cost_s, resume_s=cost_s, rescale_s=cost_s,
        )
        for speed, share, cost_s in ((100.0, 0.25, 1.0), (50.0, 0.75, 2.0))
    )  # fmt: skip
    found = execution.between(before, after)
    assert found.samples_per_s[0] == pytest.approx({1: 1.0 / 0.015, 2: 2.0 / 0.015})
    assert found.machine_shares[0] == pytest.approx({1: 0.5, 2: 1.0})
    assert (found.prepare_s, found.start_s, found.resume_s, found.rescale_s) == (1.5, 1.5, 1.5, 1.5)
    assert execution.drift_of(before, after) == pytest.approx(2.0)


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "ones"])
def test_the_live_mix_that_comes_with_the_program_is_simulated(policy: str) -> None:
    """Seven jobs, all done, in the order of their file."""
    scenario = load_scenario(FOLDER / "jobs" / "live-4-processes.yaml", [f"policy={policy}"])
    found = scenario.workload.simulate(scenario).summary
    assert [job.job_id for job in found.jobs] == list("abcdefg")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["jobs={draw: {num_jobs: 2, load: 1}}"], "an execution needs jobs that are written one by one"),
        (["cluster={types: [{name: a, num_nodes: 1, devices_per_node: 2}]}"], "an execution has processes of one type"),
        (["failures.mtbf_per_node=60 d"], "an execution has the failures that happen"),
        (["cluster.placement=most_free"], "cluster.placement: processes of this machine are placed on few nodes"),
        (["cluster.interference=0.5"], "cluster.interference: processes of this machine are placed"),
        (["costs.resume=1 s"], "costs.resume: an execution measures what a change takes"),
        (["round=60 s"], "an execution decides at every event"),
        (["jobs={list: [{id: a, arrival: 0 s, num_gpus: 1, duration: 1 s, gpu_use: {memory: 0.5}}]}"],
         "each process trains one job, and two share none"),
        (["cluster={num_nodes: 65, devices_per_node: 1}"], "65 GPUs are as many processes of this machine"),
        (["jobs={list: [{id: a, arrival: 0 s, num_gpus: 1, duration: 1 s}]}"],
         "job a states no batch that could be trained"),
        (["jobs={list: [{id: a, arrival: 0 s, num_gpus: 1, elastic: " + ELASTIC.replace("60", "60.5") + "}]}"],
         "job a has parts of samples or epochs"),
    ],
)  # fmt: skip
def test_mixes_that_cannot_be_executed_are_refused(mix: Path, tmp_path: Path, capsys, changes, words: str) -> None:
    """One message, with the key and a remedy."""
    arguments = [word for each in changes for word in ("--set", each)]
    assert words in refuse(capsys, tmp_path, "execute", str(mix), *arguments)


def test_a_time_outside_the_limits_is_refused_before_torch_is_loaded(
    mix: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    """Nothing is imported or measured for it."""
    monkeypatch.setattr(execution, "load_torch_backend", None)
    message = refuse(capsys, tmp_path, "execute", str(mix), "--timeout", "0 s")
    assert "--timeout 0 s: a rank may be silent for 5 s to 24 h" in message


def test_options_of_other_executions_are_refused(mix: Path, tmp_path: Path, capsys) -> None:
    """Jobs train on processors alone."""
    assert "an execution of job mixes has no such choice" in refuse(
        capsys, tmp_path, "execute", str(mix), "--device", "cuda"
    )
    assert "--repeats: an execution of single steps has no such choice" in refuse(
        capsys, tmp_path, "execute", "tiny-gpt-two-stages", "--repeats", "2"
    )
