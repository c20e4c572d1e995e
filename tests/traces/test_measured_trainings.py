"""Measured trainings: the packaged tables are those that were published, and damaged ones are refused by line."""

from pathlib import Path

import pytest

from traces.errors import TraceError
from traces.measured_trainings import FOLDER, MeasuredStep, RecordedTraining, read_trainings, training_names


@pytest.fixture(scope="module")
def pollux() -> dict[str, RecordedTraining]:
    """Return the packaged trainings of Pollux."""
    return dict(read_trainings(FOLDER / "pollux"))


def test_packaged_trainings_are_the_published_ones(pollux: dict[str, RecordedTraining]) -> None:
    """Six applications with their epochs; some rows are those of the paper's artifact, to five digits."""
    assert training_names() == ("pollux",)
    found = {name: (len(each.epochs), len(each.epochs[min(each.epochs)])) for name, each in pollux.items()}
    assert found == {
        "bert": (6, 2), "cifar10": (6, 100), "deepspeech2": (6, 80), "imagenet": (7, 90), "ncf": (8, 10),
        "yolov3": (7, 50),
    }  # fmt: skip
    published = {
        ("cifar10", (1,), 128): (0.10385, 0.00053),
        ("cifar10", (1, 1), 32): (0.10383, 0.06178),
        ("imagenet", (1,), 115): (0.56020, 0.00120),
        ("imagenet", (1, 1), 20): (0.25749, 0.11062),
        ("bert", (1,), 12): (0.92152, 0.01370),
        ("bert", (1, 1), 12): (1.48147, 0.61968),
    }
    for (name, counts, batch), times_s in published.items():
        placed = [each for each in pollux[name].steps if each.counts == counts]
        nearest = min(placed, key=lambda each: abs(each.local_batch - batch))
        assert abs(nearest.local_batch - batch) <= 1
        assert (nearest.step_s, nearest.sync_s) == pytest.approx(times_s, abs=6e-6)
    first = pollux["cifar10"].epochs[128][:3]
    assert [(each.grad_sqr, each.grad_var) for each in first] == [
        pytest.approx(pair, abs=6e-3) for pair in ((8.95, 5.07), (1.90, 1.59), (1.27, 1.44))
    ]


STEPS = "application,placement,num_nodes,num_gpus,local_batch,step_s,sync_s\na,12,2,3,8,0.5,0.1\na,,5,5,8,0.6,0.2\n"
EPOCHS = "application,batch_size,epoch,progress,iterations,grad_sqr,grad_var\na,8,1,10,10,1,2\na,8,2,20,20,1,2\n"
SIDECAR = "citation: a\nsource: b\nlicence: c\napplications:\n  a: {}\n"


def written(folder: Path, steps: str = STEPS, epochs: str = EPOCHS, sidecar: str = SIDECAR) -> Path:
    """Write the three files."""
    for name, text in (("steps.csv", steps), ("epochs.csv", epochs), ("trainings.yaml", sidecar)):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_folder_is_read(tmp_path: Path) -> None:
    """Digits of a placement are the GPUs of its nodes; without them only the numbers are known."""
    found = read_trainings(written(tmp_path))["a"]
    assert found.steps == (MeasuredStep((1, 2), 2, 3, 8, 0.5, 0.1), MeasuredStep((), 5, 5, 8, 0.6, 0.2))
    assert [epoch.progress for epoch in found.epochs[8]] == [10.0, 20.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": STEPS.replace(",12,2,3", ",12,2,4")}, "steps.csv:2: placement: the placement '12' has not 4 GPUs"),
        ({"steps": STEPS.replace(",12,2,3", ",1x,2,3")}, "steps.csv:2: placement"),
        ({"steps": STEPS.replace(",12,2,3", ",30,2,3")}, "steps.csv:2: placement"),
        ({"steps": STEPS.replace("0.5", "fast")}, "steps.csv:2: step_s: 'fast' is no number"),
        ({"steps": STEPS.replace("a,12", "b,12")}, "steps.csv:2: application: 'b' is not in trainings.yaml"),
        ({"steps": STEPS.splitlines()[0]}, "a has no steps with a placement, no epochs, or batches with other numbers"),
        ({"steps": STEPS + "a,21,2,3,8,0.7,0.1\n"}, "a has two steps of one placement and batch"),
        ({"steps": STEPS.replace("0.5,0.1", "0.5,0.5")}, "steps.csv:2: sync_s: '0.5' is no number from 0"),
        ({"sidecar": SIDECAR.replace("{}", "{chosen_batch: 9}")}, "a has limits outside of its tables"),
        ({"epochs": EPOCHS + "a,16,1,9,5,1,2\n"}, "batches with other numbers of epochs"),
        ({"epochs": EPOCHS.replace("a,8,2,", "a,8,3,")}, "epochs.csv:3: epoch: epoch 3 does not follow 1 epochs"),
        ({"epochs": EPOCHS.replace(",2,20,", ",2,9,")}, "epochs.csv:3: progress: '9' is no number from 10"),
        ({"epochs": EPOCHS.replace(",1,2\n", ",-1,2\n")}, "epochs.csv:2: grad_sqr"),
        ({"sidecar": "a: [\n"}, "trainings.yaml: it does not state trainings"),
        ({"sidecar": SIDECAR.replace("{}", "{most_gpu: 1}")}, "most_gpu"),
    ],
)
def test_damaged_tables_are_refused(tmp_path: Path, change: dict[str, str], words: str) -> None:
    """The message has the file, the line and the rule."""
    with pytest.raises(TraceError) as caught:
        read_trainings(written(tmp_path, **change))
    assert words in str(caught.value)
