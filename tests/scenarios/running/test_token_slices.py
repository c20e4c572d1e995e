"""Token slices in scenarios: stated, even, chosen, refused."""

from pathlib import Path

import pytest

from scenarios.choices.slices import with_slices
from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.library.shipped import FOLDER
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import run_step, simulate
from sim.training.spec.job import DenseTraining, OpenTraining

SCENARIO = """
name: slices
seed: 0
cluster: {node: aws-p3-16xlarge, num_nodes: 2, devices_per_node: 4}
model: {family: gpt, num_layers: 8, hidden_size: 2048, num_heads: 16, sequence_length: 1024, vocab_size: 64,
        tied_embeddings: false, dropout: 0.0}
training: {global_batch_size: 2, microbatch_size: 1, precision: fp16}
parallel: {pipeline: {degree: 8, schedule: terapipe, token_slices: 4}}
"""
KEY = "parallel.pipeline.token_slices"
COARSE = "parallel.pipeline.slice_granularity=32"
"""A quarter of the lengths that are tried by default."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the file of a scenario with four slices."""
    file = tmp_path / "slices.yaml"
    file.write_text(SCENARIO)
    return file


def slices_of(path: Path, *overrides: str) -> tuple[int, ...]:
    """Return the lengths of a scenario's slices."""
    job = load_scenario(path, overrides).decided().job
    assert isinstance(job, DenseTraining)
    return job.parallel.pipeline.token_slices


def step_s(path: Path, *overrides: str) -> float:
    """Return a scenario's step time."""
    return run_step(load_scenario(path, overrides)).iteration_time_s


def test_numbers_and_lengths_of_slices(path: Path) -> None:
    """A number makes slices of one length, or the first ones longer; lengths are taken as they stand."""
    assert slices_of(path) == (256,) * 4
    assert slices_of(path, f"{KEY}=3") == (342, 341, 341)
    assert slices_of(path, f"{KEY}=[512,300,212]") == (512, 300, 212)


def test_even_slices_divide_over_the_ranks_that_share_them(path: Path) -> None:
    """Where the sequence is split over tensor-parallel ranks, lengths are multiples of their number."""
    changes = ("parallel.pipeline.degree=4", "parallel.tensor.degree=2", "parallel.tensor.sequence_parallel=true")
    assert slices_of(path, *changes, f"{KEY}=3") == (342, 342, 340)


def test_chosen_slices_are_faster_than_one_and_than_many(path: Path) -> None:
    """With eight stages and two sequences, what is chosen beats whole sequences by far.

    Even cuts of any number are no more than 5 % faster: the search charges messages as if nothing hid them.
    """
    scenario = load_scenario(path, [f"{KEY}=auto", COARSE]).decided()
    auto_s = run_step(scenario).iteration_time_s
    assert auto_s < 0.7 * step_s(path, f"{KEY}=1")
    assert auto_s <= 1.05 * min(step_s(path, f"{KEY}={count}") for count in (4, 8, 16))
    assert sum(scenario.job.parallel.pipeline.token_slices) == 1024


def test_slices_are_chosen_where_none_are_stated(path: Path) -> None:
    """Left out, they are `auto`; a textbook workload has no prices, so it must state them."""
    left_out = "parallel.pipeline={degree: 8, schedule: terapipe}"
    assert slices_of(path, left_out, COARSE) == slices_of(path, f"{KEY}=auto", COARSE)
    with pytest.raises(ScenarioError, match="a textbook has no prices"):
        load_scenario(FOLDER / "textbook-1f1b.yaml", ["parallel.pipeline.schedule=terapipe"])


def test_a_choice_keeps_to_the_granularity(path: Path) -> None:
    """Chosen lengths are multiples of the stated one, and of the ranks that share a slice."""
    assert all(
        tokens % 128 == 0 for tokens in slices_of(path, f"{KEY}=auto", "parallel.pipeline.slice_granularity=128")
    )


def test_deeper_pipelines_want_more_slices(path: Path) -> None:
    """The (K-1) longest slices of the latency weigh more on eight stages than on two."""
    changes = ("parallel.data.degree=1", f"{KEY}=auto", COARSE)
    shallow = slices_of(
        path, "parallel.pipeline.degree=2", "cluster.num_nodes=1", "cluster.devices_per_node=2", *changes
    )
    assert len(shallow) < len(slices_of(path, *changes))


def test_later_slices_are_shorter_since_they_attend_to_more(path: Path) -> None:
    """Long slices are priced after their whole context, too: a third of a sequence is not cheap at its end."""
    pipeline = "{degree: 2, schedule: seq_1f1b, token_slices: auto, slice_granularity: 256}"
    few = (
        "cluster={node: hgx-h100, num_nodes: 1, devices_per_node: 2}",
        "model.sequence_length=4096",
        "training.precision=bf16",
    )
    first, *_, last = slices_of(path, *few, f"parallel.pipeline={pipeline}")
    assert first > last


def test_summary_and_console_tell_the_slices(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary lists the lengths, the console puts equal ones together; without slices neither does."""
    assert simulate(load_scenario(path, [f"{KEY}=[512,256,256]"])).as_json()["token_slices"] == [512, 256, 256]
    with pytest.raises(SystemExit):
        main([str(path), "--set", f"{KEY}=[512,256,256]", "--advice", "none"])
    assert "3: 512, 2 x 256" in capsys.readouterr().out
    whole = load_scenario(path, ["parallel.pipeline={degree: 8, schedule: gpipe}"])
    assert "token_slices" not in simulate(whole).as_json()


def test_textbook_slices_take_their_share(tmp_path: Path) -> None:
    """Of a textbook workload's times, slices take what their lengths say."""
    file = tmp_path / "textbook.yaml"
    file.write_text(
        "name: t\nseed: 0\nmodel: {family: delay, forward: 4 s, backward_input: 4 s, backward_weight: 4 s}\n"
        "training: {num_microbatches: 2}\n"
        "parallel: {pipeline: {degree: 3, schedule: terapipe, token_slices: [2, 1, 1]}}\n"
    )
    assert step_s(file) == pytest.approx(12 * (2 + 2 * 0.5))
    assert step_s(file, f"{KEY}=4") == pytest.approx(12 * (2 + 2 * 0.25))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([f"{KEY}=0"], "slices are a number of 1 or more"),
        ([f"{KEY}=many"], "slices are a number of 1 or more"),
        ([f"{KEY}=[512,512.5]"], "slices are a number of 1 or more"),
        ([f"{KEY}=[]"], "slices are a number of 1 or more"),
        ([f"{KEY}=[512,256]"], "768 tokens in all"),
        ([f"{KEY}=2000"], "do not make 2000 slices"),
        (["parallel.pipeline.schedule=1f1b"], "1f1b has no token_slices"),
        (["parallel.pipeline={degree: 8, schedule: gpipe, token_slices: auto}"], "gpipe has no token_slices"),
        (["parallel.pipeline.slice_granularity=8"], "slices that are to be chosen"),
        (["parallel.pipeline={degree: 8, schedule: gpipe, slice_granularity: 8}"], "slices that are to be chosen"),
        ([f"{KEY}=auto", "parallel.pipeline.slice_granularity=1"], "512 parts or fewer"),
        ([f"{KEY}=auto", "parallel.pipeline.slice_granularity=48"], "512 parts or fewer"),
    ],
)
def test_slices_that_cannot_be_are_refused(path: Path, overrides: list[str], words: str) -> None:
    """One error, with key, rule and remedy."""
    with pytest.raises(ScenarioError, match=words) as error:
        load_scenario(path, overrides).decided()
    assert error.value.key.startswith("parallel.pipeline.")
    assert error.value.remedy


def test_slices_of_a_job_can_be_put_in_place(path: Path) -> None:
    """Slices that an open job is decided on make the job that states them."""
    job = load_scenario(path, [f"{KEY}=auto"]).job
    assert isinstance(job, OpenTraining)
    assert with_slices(job, (256,) * 4) == load_scenario(path).job
