"""Slot diagrams: every schedule draws itself, in the terminal and as a picture, with the times of the engine."""

import json
import re
from io import StringIO
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from scenarios.cli import main
from scenarios.report.charts.bar_labels import label_angle
from scenarios.report.slots.slot_diagram import SlotDiagram, choose_slots
from scenarios.report.slots.slot_text import print_slots
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate

NO_HOP = ("hop: 0.25 s", "hop: 0 s")
SCHEDULES = {
    "gpipe": (1, 33.0), "1f1b": (1, 33.0), "interleaved_1f1b": (2, 28.5), "breadth_first": (2, 28.5), "aiao": (2, 28.5),
    "zb_h1": (1, 27.0), "zb_h2": (1, 27.0), "zb_v": (2, 25.5), "zb_auto": (1, 27.0), "chimera": (1, None),
    "dualpipe": (1, 26.0), "dualpipe_v": (2, None),
}  # fmt: skip
"""Virtual stages, and the makespan of 4 ranks, 8 micro-batches and forward = input = weight = 1 s where it is known."""


def diagram_of(path: Path, *overrides: str) -> SlotDiagram:
    """Return the slots of a scenario file."""
    return choose_slots(simulate(load_scenario(path, overrides), detail="task").timeline)


def printed(diagram: SlotDiagram, width: int = 120, *, colour: bool = False) -> str:
    """Return what a console of that width shows."""
    out = StringIO()
    print_slots(
        diagram, Console(file=out, width=width, color_system="truecolor" if colour else None, force_terminal=colour)
    )
    return out.getvalue()


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Run the command line and return exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as left:
        main(args)
    out, err = capsys.readouterr()
    return int(str(left.value.code or 0)), out, err


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_draws_all_its_passes(write, textbook, schedule: str) -> None:
    """Each rank runs each of its stages forward and backward for each micro-batch, one slot after the other."""
    stages, makespan_s = SCHEDULES[schedule]
    path = write(textbook, NO_HOP, ("schedule: 1f1b", f"schedule: {schedule}, virtual_stages: {stages}"))
    diagram = diagram_of(path)
    assert makespan_s is None or diagram.end_s == pytest.approx(makespan_s)
    for lane in range(4):
        slots = [slot for slot in diagram.boxes if slot.lane == lane]
        assert sum(slot.duration_s for slot in slots) == pytest.approx(24.0)
        assert all(before.end_s <= after.start_s + 1e-9 for before, after in pairwise(slots))
        forwards = {(slot.task, slot.microbatch) for slot in slots if slot.phase.key == "forward"}
        assert len(forwards) == 8 * stages
    assert diagram.idle_fraction == pytest.approx(1 - 24.0 / diagram.end_s)
    text, coloured = printed(diagram, 400), printed(diagram, 400, colour=True)
    assert len(text.splitlines()) == 4 + 2 + (diagram.has_chunks)
    assert coloured.count("\x1b") > 100


def test_terminal_shows_1f1b_as_papers_draw_it(write, textbook) -> None:
    """Two ranks and three micro-batches, character by character: three columns are a second."""
    path = write(textbook, NO_HOP, ("degree: 4", "degree: 2"), ("num_microbatches: 8", "num_microbatches: 3"))
    assert printed(diagram_of(path)).splitlines()[:3] == [
        "pp=0  |F0|F1······| B0  |F2| B1  ···| B2  ",
        "pp=1  ···|F0| B0  |F1| B1  |F2| B2  ······",
        "      0 s                             12 s",
    ]


def test_messages_and_synchronisation_have_lines_of_their_own(write, textbook) -> None:
    """A hop is drawn at the receiver while it lasts, gradient synchronisation after the backwards."""
    path = write(
        textbook, ("hop: 0.25 s", "hop: 1 s, gradient_sync: 2 s"), ("num_microbatches: 8", "num_microbatches: 2")
    )
    lines = printed(diagram_of(path, "parallel.pipeline.degree=2")).splitlines()
    assert lines[:4] == [
        "pp=0  |F0|F1············| B0  ···| B1  ······",
        "                     <<<      <<<      ======",
        "pp=1  ······|F0| B0  |F1| B1  ···············",
        "         >>>>>>               ======         ",
    ]
    assert "= sync of gradients and parameters" in lines[-1]


def test_wide_diagrams_are_cut_and_say_so(write, textbook) -> None:
    """No line is wider than the terminal; beginning and end are shown, and what is not is named."""
    diagram = diagram_of(write(textbook), "training.num_microbatches=64")
    lines = printed(diagram, 100).splitlines()
    assert max(len(line.rstrip()) for line in lines[:8]) <= 100
    assert "in the middle are not shown" in lines[-1]
    assert lines[0].startswith("pp=0  |F0 ")
    assert lines[0].rstrip().endswith("B63")


def test_many_ranks_are_thinned_and_say_so(write, textbook) -> None:
    """Of 100 ranks 32 are drawn, first and last among them."""
    diagram = diagram_of(write(textbook), "parallel.pipeline.degree=100")
    assert (len(diagram.ranks), diagram.ranks[0], diagram.ranks[-1]) == (32, "pp=0", "pp=99")
    assert "68 more ranks are not shown" in printed(diagram)


def test_scenario_shows_cluster_and_schedule(capsys, write) -> None:
    """A transformer's scenario: first its cluster, then its pipeline with the ranks that each line stands for."""
    code, out, _ = run(capsys, "show", str(write()), "--set", "training.global_batch_size=384")
    assert code == 0
    assert out.index("1,536 devices") < out.index("interleaved_1f1b, 8 pipeline ranks, 2 virtual stages each, 8 micro")
    assert "pp=7 ×192" in out


def test_forwards_of_both_versions_of_the_weights_are_drawn_alike(write, quickstart) -> None:
    """PipeDream-2BW of a transformer: in each of its four steps every rank has a forward per micro-batch."""
    model = ("vocab_size: 51200", "vocab_size: 51200, tied_embeddings: false")
    path = write(quickstart, model, ("interleaved_1f1b, virtual_stages: 2", "pipedream_2bw"))
    diagram = diagram_of(path, "training.global_batch_size=384")
    for lane in range(8):
        forwards = [s.microbatch for s in diagram.boxes if s.lane == lane and s.phase.key == "forward"]
        assert sorted(forwards) == list(range(4 * 8))


def test_json_holds_the_slots(capsys, write, textbook) -> None:
    """--json has name, numbers and every slot; a textbook scenario has no cluster."""
    found = json.loads(run(capsys, "show", str(write(textbook, NO_HOP)), "--json")[1])
    assert set(found) == {"schedule"}
    schedule = found["schedule"]
    assert (schedule["name"], schedule["duration_s"], schedule["num_microbatches"]) == ("1f1b", 33.0, 8)
    assert schedule["slots"][3]["tasks"][0] == {"task": "forward.3", "microbatch": 0, "start_s": 3.0, "end_s": 4.0}


@pytest.mark.parametrize("command", ["show", "schedule"])
def test_picture_numbers_its_boxes_and_is_always_the_same(
    capsys, write, textbook, tmp_path: Path, command: str
) -> None:
    """The SVG is well-formed, names ranks and micro-batches, has the schedule's words, and the same bytes twice."""
    path = write(textbook, ("schedule: 1f1b", "schedule: dualpipe"))
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for picture in (first, second):
        assert run(capsys, command, str(path), "--out", str(picture))[0] == 0
    assert first.read_bytes() == second.read_bytes()
    text = ["".join(node.itertext()).strip() for node in ElementTree.parse(first).iter() if node.tag.endswith("text")]
    assert {"pp=0", "pp=3", "idle", "forward", "backward, its part for weights"} <= set(text)
    assert "dualpipe, 4 pipeline ranks, 8 micro-batches" in text
    assert text.count("7") >= 4 * 2


def test_schedule_writes_the_csv_that_it_prints(capsys, write, textbook, tmp_path: Path) -> None:
    """--out FILE.csv holds what standard output shows; two copies of the model have no CSV, and leave none."""
    out = tmp_path / "order.csv"
    printed_text = run(capsys, "schedule", str(write(textbook)))[1]
    assert run(capsys, "schedule", str(write(textbook)), "--out", str(out))[0] == 0
    assert out.read_text() == printed_text
    out.unlink()
    code, _, error = run(capsys, "schedule", str(write(textbook, ("1f1b", "chimera"))), "--out", str(out))
    assert (code, out.exists()) == (2, False)
    assert "parallel.pipeline.schedule" in error


def test_bad_names_are_refused(capsys, write, textbook, tmp_path: Path) -> None:
    """An ending that is no schedule's, or a place that cannot be written: exit code 2, nothing left."""
    path = write(textbook)
    for out, said in ((tmp_path / "a.txt", "no kind of schedule"), (tmp_path / "none" / "a.svg", "cannot be written")):
        code, _, error = run(capsys, "schedule", str(path), "--out", str(out))
        assert code == 2
        assert said in error
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_of_many_micro_batches_can_be_read(capsys, write, textbook, tmp_path: Path) -> None:
    """Pictures number every pass of 120 micro-batches, turned where boxes are narrow; a terminal cuts no number."""
    path, picture = write(textbook, ("num_microbatches: 8", "num_microbatches: 120")), tmp_path / "a.svg"
    assert run(capsys, "show", str(path), "--out", str(picture))[0] == 0
    text = ["".join(node.itertext()).strip() for node in ElementTree.parse(picture).iter() if node.tag.endswith("text")]
    for number in range(10, 120):
        assert text.count(str(number)) >= 4 * 2  # an axis may have the number, too
    diagram = diagram_of(path)
    for width in range(60, 110):
        for line in printed(diagram, width).splitlines()[:8]:
            beginning, _, end = line.partition(" ... ")
            for part in (beginning, end):
                for letter in "FB":
                    numbers = [int(found) for found in re.findall(rf"{letter}(\d+)", part)]
                    assert numbers == sorted(numbers)
            assert not re.match(r"[\d ]*\d", end)


@pytest.mark.parametrize(
    ("label", "width", "height", "angle"),
    [("7", 0.1, 0.2, 0), ("12", 0.15, 0.2, 0), ("12", 0.1, 0.2, 90), ("12", 0.07, 0.2, None), ("12345", 0.1, 0.2, None),
     ("", 1.0, 1.0, None)],
)  # fmt: skip
def test_numbers_are_turned_where_bars_are_narrow(label: str, width: float, height: float, angle: int | None) -> None:
    """A number lies where the bar is wide, stands where it is high, and is left out where neither holds it."""
    assert label_angle(label, width, height) == angle
