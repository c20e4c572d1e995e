"""Job mixes from file to report."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from scenarios.cli import main
from scenarios.library.shipped import FOLDER
from scenarios.report.blocks import Chart
from scenarios.report.rendering.notebook import notebook_html
from scenarios.report.rendering.surfaces import every_block
from scenarios.workloads.job_mix.cluster_chart import cluster_section, gpu_bars
from scenarios.workloads.job_mix.reading import POLICIES
from scenarios.workloads.job_mix.schema import PolicyName
from scenarios.workloads.job_mix.starter import STARTER
from scenarios.workloads.loading import load_scenario
from tests.scenarios.refusing import refuse
from tests.traces.test_job_logs import ALIBABA, ONES, PHILLY

FILE = """\
name: five jobs
workload: job_mix
cluster: {num_nodes: 1, devices_per_node: 4}
jobs:
  list:
    - {id: one, arrival: 0 s, num_gpus: 2, duration: 100 s}
    - {id: two, arrival: 10 s, num_gpus: 4, duration: 20 s}
    - {id: three, arrival: 20 s, num_gpus: 1, duration: 30 s}
policy: srtf
"""
PAGE = Path(__file__).parents[3] / "docs" / "jobs.md"
NODE = "{name: %s, num_nodes: 1, devices_per_node: %d}"

BATCH = "training.global_batch_size"
JOB = "id: one, arrival: 0 s, num_gpus: 2, duration: 9 s"
SCALED = (
    "{local_batch_size: 8, learning_rate: 0.02, most_learning_rate: 0.04, "
    "step: {compute: 1 ms, compute_per_sample: 0 s, network_sync: 1 ms}}"
)


def _elastic(speed: str, more: str = "") -> str:
    """Return an override: one elastic job with a speed."""
    training = f"{{samples_per_epoch: 60, num_epochs: 3, {speed}}}"
    return f"jobs={{list: [{{id: one, arrival: 0 s, num_gpus: 2, elastic: {training}{more}}}]}}"


def test_every_policy_can_be_made_and_is_on_the_page() -> None:
    """The names that a file may hold, those with a class, the rows of the table and the starter's comment agree."""
    table = PAGE.read_text(encoding="utf-8").partition("## Policies")[2].partition("##")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) - {"policy"} == set(get_args(PolicyName))
    assert set(POLICIES) == set(get_args(PolicyName))
    comment = STARTER.partition("policy: ")[2].partition("\npolicies:")[0]
    assert set(re.findall(r"\w+", comment)) - {"for", "elastic", "jobs", "alone"} == set(get_args(PolicyName))


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    """Return a file with three jobs."""
    path = tmp_path / "mix.yaml"
    path.write_text(FILE)
    return path


def answered(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Return what a command prints."""
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    assert caught.value.code in (0, None)
    return capsys.readouterr().out


def test_a_mix_is_simulated_and_written(mix: Path, tmp_path: Path, capsys) -> None:
    """The answers in JSON, and a page with the cluster over time."""
    answered(capsys, str(mix), "--out", str(tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [job["jct_s"] for job in found["jobs"]] == [120.0, 20.0, 40.0]
    assert found["decisions"][1] == {
        "at_s": 10.0, "job_id": "one", "num_gpus": 0, "why": "others come first: least remaining time",
    }  # fmt: skip
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Cluster over time" in page
    assert "Completion times" in page


def test_policies_and_traces_are_swept(mix: Path, tmp_path: Path, capsys) -> None:
    """A sweep over policies orders them by mean completion time; the jobs come from a CSV file."""
    (tmp_path / "jobs.csv").write_text("job_id,arrival_s,num_gpus,duration_s\n1,0,2,100\n2,10,4,20\n3,20,1,30\n")
    changed = mix.read_text().split("jobs:")[0] + "jobs: {trace: jobs.csv}\n"
    mix.write_text(changed)
    shown = json.loads(answered(capsys, "sweep", str(mix), "--set", "policy=fifo,srtf", "--jobs", "1", "--json"))
    assert [(point["policy"], point["mean_jct_s"]) for point in shown["points"]] == [
        ("srtf", 60.0), ("fifo", 340.0 / 3.0),
    ]  # fmt: skip


def test_elastic_jobs_get_what_helps_most(mix: Path, capsys) -> None:
    """Of two jobs of 1,000 samples one gains by more GPUs, and one does not: it keeps one."""
    rows = "{num_gpus: 1, samples_per_s: 10}, {num_gpus: 4, samples_per_s: %d}"
    elastic = "elastic: {samples_per_epoch: 500, num_epochs: 2, throughput: [" + rows + "]}"
    lines = [
        f"    - {{id: {name}, arrival: 0 s, num_gpus: 1, {elastic % most}}}\n" for name, most in (("a", 40), ("b", 10))
    ]
    text = mix.read_text().split("  list:")[0] + "  list:\n" + "".join(lines) + "policy: optimus\n"
    mix.write_text(text)
    found = json.loads(answered(capsys, str(mix), "--json"))
    assert [made["num_gpus"] for made in found["decisions"][:2]] == [1, 3]
    assert [job["jct_s"] for job in found["jobs"]] == pytest.approx([1000 / 30, 100.0])


def test_types_of_gpu_are_read(mix: Path, capsys) -> None:
    """A job that is slow on the first type goes to the second under Gavel, and to the first under FIFO."""
    jobs = "jobs={list: [{id: a, arrival: 0 s, num_gpus: 1, duration: 100 s, speeds: {old: 0.2}}]}"
    nodes = f"cluster={{types: [{NODE % ('old', 1)}, {NODE % ('new', 1)}]}}"
    changes = ("--set", jobs, "--set", nodes, "--json")
    times_s = [json.loads(answered(capsys, str(mix), *changes, "--set", f"policy={name}"))["makespan_s"]
               for name in ("fifo", "gavel", "gandiva")]  # fmt: skip
    assert times_s == [500.0, 100.0, 500.0]


def test_a_speed_is_that_of_a_simulated_plan(mix: Path, tmp_path: Path, capsys) -> None:
    """Two jobs train a small GPT on one and on four GPUs: their times are those of its simulated steps."""
    text = (FOLDER / "tiny-gpt-2x2.yaml").read_text().split("parallel:")[0] + "parallel: {data: {degree: auto}}\n"
    (tmp_path / "gpt.yaml").write_text(text)
    plan = "elastic: {samples_per_epoch: 80, num_epochs: 3, plan: {scenario: gpt.yaml, num_gpus: [1, 4]}}"
    rows = [f"{{id: {name}, arrival: 0 s, num_gpus: {count}, {plan}}}" for name, count in (("a", 1), ("b", 4))]
    text = FILE.split("jobs:", maxsplit=1)[0].replace("num_nodes: 1", "num_nodes: 2")
    mix.write_text(f"{text}jobs: {{list: [{', '.join(rows)}]}}\n")
    found = json.loads(answered(capsys, str(mix), "--json"))
    for job in found["jobs"]:
        size = [f"cluster.devices_per_node={job['num_gpus']}"]
        step = load_scenario(tmp_path / "gpt.yaml", size)
        step_s = step.workload.simulate(step).summary.iteration_time_s
        assert job["jct_s"] == pytest.approx(3 * 80 / 8 * step_s, rel=1e-9)


def test_failures_of_nodes_are_read(mix: Path, capsys) -> None:
    """The only node is down from 50 s to 60 s: of 40 s since its restart, the first job saved 30 s."""
    failures = "failures={list: [{node: 0, at: 90 s, repair: 10 s}], save_every: 30 s}"
    found = json.loads(answered(capsys, str(mix), "--set", failures, "--json"))
    assert [job["num_failures"] for job in found["jobs"]] == [1, 0, 0]
    assert (found["num_failures"], found["down_gpu_s"]) == (1, 40.0)
    assert found["lost_gpu_s"] == 20.0
    assert found["makespan_s"] == 140.0


@pytest.mark.parametrize("policy", ["las", "gandiva"])
def test_bars_of_a_cluster_do_not_overlap(mix: Path, policy: str) -> None:
    """Each bar has GPUs, or halves, of its own while it lasts, and all bars the GPU-seconds of the allocations."""
    drawn = "jobs={draw: {num_jobs: 60, load: 1.5, gpu_uses: [{time: 0.4, memory: 0.5}, {memory: 0.6}]}}"
    scenario = load_scenario(mix, [drawn, "cluster.num_nodes=3", f"policy={policy}"])
    record = scenario.workload.simulate(scenario).record
    bars = gpu_bars(record.allocations, record.gpus_per_node)
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    for held, first, height in bars:
        for gpu in range(int(2 * first), int(2 * (first + height))):
            by_gpu.setdefault(gpu, []).append((held.start_s, held.end_s))
    for spans in by_gpu.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    seen_gpu_s = sum((held.end_s - held.start_s) * height for held, _, height in bars)
    assert any(held.beside is not None for held, _, _ in bars) == (policy == "gandiva")
    assert seen_gpu_s == pytest.approx(sum(job.service_gpu_s for job in record.jobs))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("policy=sfrt", "policy"),
        ("cluster.devices_per_node=2", "job two needs 4 GPUs, where the cluster has 2"),
        ("jobs={}", "the jobs have no form, or several"),
        ("jobs={trace: missing.csv}", "there is no such file"),
        ("policy=las; costs={resume: 60 s}", "a quantum of 60 s ends before a restart of 60 s"),
        ("policy=las; costs={resume: 60 s}; round=50 s; policies.las.quantum=90 s",
         "a round of 50 s ends before a restart of 60 s"),
        ("policy=tiresias; policies.tiresias={starvation: 1.0, thresholds: [240.0]}; costs={resume: 60 s}",
         "a promoted job of 4 GPUs falls"),
        ("policy=tiresias; policies.tiresias.thresholds=[20, 10]", "the thresholds of the queues do not rise"),
        ("policy=optimus", "optimus gives jobs other numbers of GPUs than they ask for, and job one is rigid"),
        ("jobs={list: [{id: a, arrival: 0 s, num_gpus: 1}]}", "job a has neither a duration nor elastic training"),
        ("jobs={list: [{id: a, arrival: 0 s, num_gpus: 1, elastic: {samples_per_epoch: 1, num_epochs: 1}}]}",
         "jobs.list[0].elastic: the speed has no form, or several"),
        ("jobs={list: [{id: a, arrival: 0 s, num_gpus: 4, elastic: {samples_per_epoch: 1, num_epochs: 1, "
         "throughput: [{num_gpus: 2, samples_per_s: 1}]}}]}", "job a asks for 4 GPUs, and can use 2"),
        ("jobs={list: [{id: a, arrival: 0 s, num_gpus: 1, elastic: {samples_per_epoch: 1, num_epochs: 1, "
         "plan: {scenario: tiny-gpt-2x2, num_gpus: [2]}}}]}",
         "jobs.list[0].elastic.plan: on 2 GPUs tiny-gpt-2x2 is refused: parallel"),
        ("jobs={list: [{id: a, arrival: 0 s, num_gpus: 1, elastic: {samples_per_epoch: 1, num_epochs: 1, "
         "plan: {scenario: tiny-gpt, num_gpus: [2]}}}]}", "there is no such file"),
        ("cluster.types=[{name: a, num_nodes: 1, devices_per_node: 4}]", "the nodes have no form, or two"),
        (f"cluster={{types: [{NODE % ('a', 4)}, {NODE % ('a', 4)}]}}", "two types have one name"),
        (f"cluster={{types: [{NODE % ('a', 3)}, {NODE % ('b', 3)}]}}; policy=gavel",
         "job two needs 4 GPUs of one type, where the largest has 3"),
        ("policy=learned", "learned gives jobs other numbers of GPUs than they ask for, and job one is rigid"),
        ("jobs={ones: {num_jobs: 3}}; cluster.num_nodes=16; policy=learned; round=20 s; costs.rescale=30 s",
         "a round of 20 s ends before a change of 30 s"),
        ("durations=predicted", "durations are predicted from epochs, and job one is rigid"),
        ("policy=fifo; durations=predicted", "fifo asks for no duration"),
        ("speeds=observed", "job one is rigid, and has one speed"),
        ("policy=fifo; speeds=observed", "fifo is given no speed"),
        ("past_jobs=3", "past jobs are drawn as jobs.ones draws them"),
        ("jobs={ones: {num_jobs: 3}}; cluster.num_nodes=16; past_jobs=3", "nothing learns from them under srtf"),
        ("policy=ones; policies.ones.generation=1 us; jobs={ones: {num_jobs: 2}}; cluster.num_nodes=4",
         "policies.ones.generation: jobs for"),
        ("policy=las; policies.las.quantum=1 us", "a decision every 1e-06 s make 7.8e+07 decisions"),
        ("round=10 us", "round: jobs for 77.5 s and a decision every 1e-05 s"),
        ("policy=gandiva; costs.resume=60 s", "a slice of 60 s ends before a restart of 60 s"),
        ("failures={list: [{node: 1, at: 0 s, repair: 1 s}]}", "node 1 fails, where the cluster has nodes 0 to 0"),
        ("failures.mtbf_per_node=20 s", "a node of job one fails every 20 s; it needs 100 s to save anything"),
        ("cluster.shared_network=true; cluster.interference=0.5", "a shared network already slows jobs down"),
        ("jobs={ones: {}}", "the jobs ask for up to 16 GPUs of 4"),
        ("jobs={list: [{id: a, arrival: 0 s, num_gpus: 1, duration: 1 s}, "
         "{id: a, arrival: 0 s, num_gpus: 1, duration: 1 s}]}", "two jobs are called a"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(mix: Path, tmp_path: Path, capsys, change: str, words: str) -> None:
    """One message, with the key and a remedy."""
    changes = [word for each in change.split("; ") for word in ("--set", each)]
    assert words in refuse(capsys, tmp_path, str(mix), *changes)


@pytest.mark.parametrize(("name", "text", "num_gpus"), [("philly", PHILLY, [8, 1]), ("alibaba", ALIBABA, [2, 2])])
def test_published_logs_are_simulated(mix: Path, tmp_path: Path, capsys, name: str, text: str, num_gpus: list) -> None:
    """The jobs of a log in its own format."""
    (tmp_path / "log").write_text(text)
    mix.write_text(FILE.split("jobs:", maxsplit=1)[0] + f"jobs: {{trace: log, format: {name}}}\npolicy: fifo\n")
    found = json.loads(answered(capsys, str(mix), "--set", "cluster.num_nodes=2", "--json"))
    assert sorted(job["num_gpus"] for job in found["jobs"]) == sorted(num_gpus)


MEASURED = "jobs: {trace: pollux.csv, format: pollux, measured: pollux}\npolicy: fifo\n"
HEAD = "name,time,application,num_replicas,batch_size\n"


@pytest.mark.parametrize(
    ("rows", "change", "words"),
    [
        (HEAD + "a,0,gpt,1,8\n", "", "pollux.csv:2: gpt is not among the measured trainings"),
        (HEAD + "a,0,bert,1,999\n", "", "pollux.csv:2: a batch of 999, where 12 to 384 were measured"),
        (HEAD + "a,0,bert,4,12\n", "", "pollux.csv:2: job a asks for 4 GPUs, and can use 3"),
        ("name,time,application,num_replicas\na,0,bert,1\n", "", "pollux.csv:2: the trace has no batch_size"),
        (HEAD + "a,0,bert,1,12\n", "jobs.measured=pollox", "there is no such file"),
        (HEAD + "a,0,bert,1,12\n", "jobs.format=ones", "measured trainings are for a trace of Pollux alone"),
        (HEAD + "a,0,bert,1,12\n", "policy=ones", "from losses, which measured trainings lack"),
        (HEAD + "a,0,bert,1,12\n", "whole_seconds=true", "epochs end at whole seconds, and rounds do not"),
    ],
)
def test_measured_trainings_that_cannot_be_are_refused(
    mix: Path, tmp_path: Path, capsys, rows: str, change: str, words: str
) -> None:
    """The line of the trace, or the key, with a remedy."""
    (tmp_path / "pollux.csv").write_text(rows)
    mix.write_text(FILE.split("jobs:", maxsplit=1)[0] + MEASURED)
    assert words in refuse(capsys, tmp_path, str(mix), *(["--set", change] if change else []))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("jobs.format=philly", "jobs.format: it is that of a trace, and there is none"),
        ("jobs.measured=pollux", "jobs.measured: the trainings are those of a trace"),
        ("jobs.trainings={}", "jobs.trainings: only traces of pollux, ones name what a job trains"),
        ("jobs.batch=chosen", "jobs.batch: it is that of measured trainings, and there are none"),
        ("whole_seconds=true", "whole_seconds: epochs of measured trainings end at whole seconds"),
    ],
)
def test_keys_that_the_jobs_do_not_read_are_refused(mix: Path, tmp_path: Path, capsys, change: str, words: str) -> None:
    """Beside jobs that are listed, what a trace or measured trainings need says so, and is not ignored."""
    assert words in refuse(capsys, tmp_path, str(mix), "--set", "round=60 s", "--set", change)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["cluster.shared_network=true"], "cluster.shared_network: no job keeps the network busy"),
        (["cluster.packing_loss=0.1"], "cluster.packing_loss: no two jobs share GPUs"),
        ([f"jobs={{list: [{{{JOB}, network_fraction: 0.5}}]}}"], "jobs.list[0].network_fraction: jobs do not share"),
        (["jobs={draw: {num_jobs: 2, load: 1, network_fraction: 0.5}}"], "jobs.draw.network_fraction: jobs do not"),
        ([f"jobs={{list: [{{{JOB}, gpu_use: {{time: 0.5}}}}]}}"], "jobs.list[0].gpu_use: a job with all memory"),
        ([f"jobs={{list: [{{{JOB}, speeds: {{k80: 0.5}}}}]}}"], "jobs.list[0].speeds: the cluster has no type"),
        (["jobs={draw: {num_jobs: 2, load: 1, speeds: [{nwe: 2}]}}", f"cluster={{types: [{NODE % ('new', 4)}]}}"],
         "did you mean new?"),
        (["policy=las", "policies.las.quantum=5 s", "round=7 s"], "policies.las.quantum: with a round, las decides"),
        (["jobs={ones: {num_jobs: 2}}", "cluster.num_nodes=8", "failures={mtbf_per_node: 30 d, save_every: 1 h}"],
         "failures.save_every: every job is elastic"),
        (["failures={list: [{node: 0, at: 9 s, repair: 5 s}, {node: 0, at: 3 s, repair: 7 s}]}"],
         "failures.list[0]: node 0 fails at 9 s, and is down from 3 s to 10 s"),
        ([_elastic("throughput: [{num_gpus: 2, samples_per_s: 9}, {num_gpus: 2, samples_per_s: 3}]")],
         "throughput has two speeds on 2 GPUs"),
        ([_elastic(f"scaled_batch: {SCALED}", ", network_fraction: 0.5"), "cluster.shared_network=true"],
         "jobs.list[0].network_fraction: the step of elastic says"),
        ([_elastic("plan: {scenario: tiny-gpt-2x2, num_gpus: [2], set: [cluster.num_nodes=1]}")],
         "cluster.num_nodes follows from num_gpus, and is set"),
        ([_elastic(f"plan: {{scenario: tiny-gpt-2x2, num_gpus: [2], batch_per_gpu: 2, set: [{BATCH}=4]}}")],
         "training.global_batch_size follows from batch_per_gpu"),
    ],
)  # fmt: skip
def test_a_key_that_would_change_nothing_is_refused(mix: Path, tmp_path: Path, capsys, changes, words: str) -> None:
    """A switch without jobs that it concerns, and what jobs say of something that the mix does not have."""
    arguments = [word for change in changes for word in ("--set", change)]
    assert words in refuse(capsys, tmp_path, str(mix), *arguments)


def test_traces_that_name_trainings_need_their_description(mix: Path, tmp_path: Path, capsys) -> None:
    """ONES' trace has the samples of an epoch; the mix says the rest, or the line that lacks it is named."""
    (tmp_path / "ones.csv").write_text(ONES)
    elastic = "{samples_per_epoch: 1, num_epochs: 2, throughput: [{num_gpus: 4, samples_per_s: 400}]}"
    jobs = "jobs: {trace: ones.csv, format: ones, trainings: {resnet18/cifar: %s%s}}\npolicy: fifo\n"
    mix.write_text(FILE.split("jobs:", maxsplit=1)[0] + jobs % (elastic, ""))
    assert "ones.csv:3 trains bert/cola, which the mix does not describe" in refuse(capsys, tmp_path, str(mix))
    mix.write_text(FILE.split("jobs:", maxsplit=1)[0] + jobs % (elastic, f", bert/cola: {elastic}"))
    found = json.loads(answered(capsys, str(mix), "--json"))
    assert [job["finish_s"] - job["first_start_s"] for job in found["jobs"]] == [100.0, 50.0]


def test_wrong_line_of_a_trace_is_named(mix: Path, tmp_path: Path, capsys) -> None:
    """The message has the trace's line."""
    (tmp_path / "jobs.csv").write_text("job_id,arrival_s,num_gpus,duration_s\n1,0,2,never\n")
    mix.write_text(mix.read_text().split("jobs:")[0] + "jobs: {trace: jobs.csv}\n")
    assert "jobs.csv:2: duration_s: 'never' is no number" in refuse(capsys, tmp_path, str(mix))


def test_a_notebook_shows_the_cluster_over_time(mix: Path) -> None:
    """A picture of the cluster, with whole GPUs at its lines, and one of completion times."""
    scenario = load_scenario(mix)
    blocks = scenario.workload.simulate(scenario).blocks()
    assert notebook_html(blocks).count("data:image/png") == 2
    chart = next(block for block in every_block("page", blocks) if isinstance(block, Chart) and block.id == "cluster")
    assert chart.figure["layout"]["yaxis"]["tickvals"] == [0, 1, 2, 3, 4]
    longer = cluster_section(scenario.workload.simulate(scenario).record, until_s=500.0).blocks[0]
    assert isinstance(longer, Chart)
    assert longer.figure["layout"]["xaxis"]["range"] == [0, 500]


def test_a_terminal_says_what_ran_and_which_jobs_it_shows(mix: Path, capsys) -> None:
    """Jobs, GPUs and policy stand beside the name, and above the table how many jobs it leaves out."""
    text = answered(capsys, str(mix))
    assert text.splitlines()[0] == "five jobs, 3 jobs on 4 GPUs under srtf"
    swept = answered(capsys, "sweep", str(mix), "--set", "policy=fifo,srtf", "--jobs", "1")
    assert swept.splitlines()[1].split()[:2] == ["policy", "mean"]  # and not once more as a result
    assert "of 3 jobs" not in text
    drawn = "jobs={draw: {num_jobs: 30, load: 0.5}}"
    text = answered(capsys, str(mix), "--set", drawn, "--set", "cluster.num_nodes=16")
    assert "20 of 30 jobs, those with the longest completion times\n" in text
