"""Kinds of work: a new one is one class and one entry, and all commands know it."""

import json
import pickle
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from msgspec import convert

from scenarios.cli import main
from scenarios.summaries.as_json import as_json
from scenarios.workloads import registry
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import KINDS, Kind, workloads
from scenarios.workloads.workload import Workload
from tests.scenarios.workloads.queue_of_jobs import Queue


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the trial kind to the tuple of all kinds: the one line that a new kind needs outside its folder."""
    queue = Kind("queue", Queue.__module__, Queue.__name__)
    monkeypatch.setattr(registry, "KINDS", (*KINDS, queue))


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command."""
    with pytest.raises(SystemExit) as caught:
        main([str(arg) for arg in args])
    shown = capsys.readouterr()
    return int(caught.value.code or 0), shown.out, shown.err


@pytest.fixture
def queue(tmp_path: Path, capsys) -> Path:
    """Return the starter file of the trial kind, as ``simulate new`` writes it."""
    path = tmp_path / "queue.yaml"
    assert run(capsys, "new", path, "--workload", "queue")[0] == 0
    return path


def test_a_new_kind_simulates_prints_and_writes(queue: Path, tmp_path: Path, capsys) -> None:
    """``simulate``: four jobs of 2 s that come every second are done after 8 s, and wait 0, 1, 2 and 3 s."""
    out = tmp_path / "out"
    code, shown, _ = run(capsys, queue, "--out", out)
    assert code == 0
    assert "all done after  8 s" in shown
    assert "job  waited" in shown
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "summary.json"]
    assert "<h2>Waiting</h2>" in (out / "report.html").read_text(encoding="utf-8")
    code, shown, _ = run(capsys, queue, "--json")
    assert json.loads(shown) == json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert json.loads(shown) == {
        "schema": "trial.queue/1", "scenario": "my queue", "makespan_s": 8.0, "mean_wait_s": 1.5,
    }  # fmt: skip


@pytest.mark.parametrize("kind", workloads(), ids=lambda kind: kind.name)
def test_scenarios_of_every_kind_go_to_other_processes(kind: Workload[Any], tmp_path: Path) -> None:
    """A sweep sends scenarios to its workers: one that comes out of a message gives the same row.

    A resumed sweep reads rows from a file: they are those that were written.
    """
    path = tmp_path / "starter.yaml"
    path.write_text(kind.starter, encoding="utf-8")
    scenario = load_scenario(path)
    sent = pickle.loads(pickle.dumps(scenario))
    row = kind.simulate(scenario).row()
    assert kind.simulate(sent).row() == row
    assert convert(json.loads(json.dumps(as_json(row))), kind.row_type) == row


def test_the_registry_names_every_kind_as_its_class_does() -> None:
    """A file's kind is looked up by the registry's name, and written down by that of the class."""
    assert [kind.name for kind in KINDS] == [kind.workload.name for kind in KINDS]


def test_a_new_kind_sweeps(queue: Path, tmp_path: Path, capsys) -> None:
    """``sweep``: by the kind's own order, with its own columns, and a page."""
    code, shown, _ = run(capsys, "sweep", queue, "--set", "takes=3 s,1 s", "--jobs", 1, "--out", tmp_path / "out")
    assert code == 0
    assert [line.split() for line in shown.splitlines()[1:3]] == [
        ["takes", "done", "wait"],
        ["1", "s", "4", "s", "0", "s"],
    ]
    found = json.loads((tmp_path / "out" / "sweep.json").read_text(encoding="utf-8"))
    assert found["workload"] == "queue"
    assert [(point["set"]["takes"], point["makespan_s"]) for point in found["points"]] == [("1 s", 4.0), ("3 s", 12.0)]
    assert "Least time" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_new_kind_is_listed_and_has_a_schema(queue: Path, capsys) -> None:
    """``list`` and ``schema`` know it; a file is checked against the keys of its own kind."""
    rows = json.loads(run(capsys, "list", "workloads", "--json")[1])["workloads"]
    kinds = ["training", "textbook", "service", "inference", "recommendation", "job_mix", "queue"]
    assert [row["name"] for row in rows] == kinds
    schema = json.loads(run(capsys, "schema")[1])
    data = yaml.safe_load(queue.read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(data)
    with pytest.raises(jsonschema.ValidationError, match="cluster"):
        validator.validate(data | {"cluster": {}})


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--set", "takes=3"], "takes"),
        (["--set", "num_jbos=3"], "did you mean num_jobs?"),
        (["--set", "workload=queues"], "did you mean queue?"),
    ],
)
def test_a_new_kind_refuses_as_all_do(queue: Path, capsys, args: list[str], words: str) -> None:
    """Its mistakes are one message with a remedy."""
    code, _, error = run(capsys, queue, *args)
    assert code == 2
    assert words in error


@pytest.mark.parametrize("command", ["schedule", "execute", "export", "show"])
def test_commands_that_need_a_step_say_so(queue: Path, tmp_path: Path, capsys, command: str) -> None:
    """What a kind of work does not have is refused by name."""
    more = ["--out", tmp_path / "out"] if command == "export" else []
    code, _, error = run(capsys, command, queue, *more)
    assert code == 2
    assert "workload" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("kind", workloads(), ids=lambda kind: kind.name)
def test_every_starter_simulates(tmp_path: Path, capsys, schema, kind) -> None:
    """What ``simulate new`` writes of a kind runs as it stands, and its file says or shows the kind."""
    path = tmp_path / "my.yaml"
    assert run(capsys, "new", path, "--workload", kind.name)[0] == 0
    assert run(capsys, path, "--json")[0] == 0
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(path.read_text(encoding="utf-8")))
