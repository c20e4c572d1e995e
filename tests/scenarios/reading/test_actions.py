"""Schedules as CSV files: ``simulate schedule`` writes them, ``schedule: custom`` reads them."""

import json
from typing import get_args

import pytest

from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate
from sim.training.pipeline.rules import Schedule

V_SHAPE = ("schedule: 1f1b", "schedule: zb_v, virtual_stages: 2")


def shown(capsys, *args: str) -> tuple[int, str, str]:
    """Return the exit code of a command line and what it wrote."""
    with pytest.raises(SystemExit) as left:
        main(args)
    out, err = capsys.readouterr()
    return int(str(left.value.code or 0)), out, err


def test_printed_schedule_can_be_read_in_again(capsys, write, textbook) -> None:
    """A V of zero bubbles, printed and read as a custom schedule, takes the same time."""
    path = write(textbook, V_SHAPE)
    code, text, _ = shown(capsys, "schedule", str(path))
    assert (code, len(text.splitlines())) == (0, 4)
    expected_s = simulate(load_scenario(path)).as_json()["iteration_time_s"]
    (path.parent / "order.csv").write_text(text)
    custom = write(textbook, ("schedule: 1f1b", "schedule: custom, actions: order.csv, virtual_stages: 2"))
    assert simulate(load_scenario(custom)).as_json()["iteration_time_s"] == expected_s


def test_schedules_of_transformers_are_printed_too(capsys, write, quickstart) -> None:
    """The quickstart's interleaved schedule has a row per pipeline rank, starting with its own first stage."""
    code, text, _ = shown(capsys, "schedule", str(write(quickstart)))
    assert code == 0
    assert [row.split(",")[0] for row in text.splitlines()] == [f"{rank}F0" for rank in range(8)]


def test_schedules_with_two_copies_are_not_printed(capsys, write, textbook) -> None:
    """torch's format has no words for two copies of the model."""
    code, _, message = shown(capsys, "schedule", str(write(textbook, ("schedule: 1f1b", "schedule: dualpipe"))))
    assert code == 2
    assert "two copies of the model" in message


@pytest.mark.parametrize(
    ("text", "rule"),
    [("0F0,0B0\n0F0,zero\n", "my.csv:2: 'zero' is no action"), (None, "there is no such file"), ("0F0\n", "1 rows of")],
)
def test_bad_action_files_are_refused(write, textbook, text: str | None, rule: str) -> None:
    """The message names the file and the row, or the key of the scenario."""
    path = write(textbook, ("schedule: 1f1b", "schedule: custom, actions: my.csv"))
    if text is not None:
        (path.parent / "my.csv").write_text(text)
    with pytest.raises(ScenarioError) as refused:
        load_scenario(path)
    assert rule in str(refused.value)


@pytest.mark.parametrize("schedule", ["aiao", "zb_h1", "zb_h2", "zb_auto", "chimera", "dualpipe", "breadth_first"])
def test_textbook_scenarios_run_every_schedule(write, textbook, schedule: str) -> None:
    """Schedules without further needs run as they are named."""
    path = write(textbook, ("schedule: 1f1b", f"schedule: {schedule}"), ("hop: 0.25 s", "hop: 0 s"))
    assert simulate(load_scenario(path)).as_json()["iteration_time_s"] >= 24


def test_textbook_gradient_synchronisation_is_a_key(write, textbook) -> None:
    """What aiao leaves to the next step's forwards shortens the step."""
    keys = ("schedule: 1f1b}", "schedule: aiao, virtual_stages: 2}, data: {deferred_sync: 0.5}")
    times = ("hop: 0.25 s", "gradient_sync: 24 s")
    path = write(textbook, keys, times)
    deferred_s = simulate(load_scenario(path)).as_json()["iteration_time_s"]
    whole_s = simulate(load_scenario(path, ["parallel.data.deferred_sync=0.0"])).as_json()["iteration_time_s"]
    assert deferred_s < whole_s


def test_list_says_how_many_stages_schedules_have_and_where(capsys) -> None:
    """All schedules are listed, each with the virtual stages that a rank may hold and how they lie."""
    code, text, _ = shown(capsys, "list", "schedules", "--json")
    rows = {row["name"]: (row["virtual_stages"], row["stages"]) for row in json.loads(text)["schedules"]}
    assert code == 0
    assert set(rows) == set(get_args(Schedule))
    assert (rows["1f1b"], rows["interleaved_1f1b"], rows["zb_v"]) == (("1", "loop"), ("2 or more", "loop"), ("2", "v"))
