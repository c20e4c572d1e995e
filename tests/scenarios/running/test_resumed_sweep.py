"""Sweeps that were cut off: what is done is kept, and a new run simulates the rest, each point once."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from click.testing import CliRunner

from backends.errors import LostProcessError
from scenarios.command_line import group
from scenarios.errors import ScenarioError
from scenarios.library.shipped import FOLDER
from scenarios.sweep.kept import KEPT, kept_points
from scenarios.sweep.run import Job, Sweep, prepare, run
from scenarios.sweep.settings import read_settings
from scenarios.sweep.workers import ThisProcess

P = ParamSpec("P")
T = TypeVar("T")
TEXTBOOK = FOLDER / "textbook-1f1b.yaml"
OPTIONS = ("training.num_microbatches=2,3,4", "parallel.pipeline.schedule=1f1b,interleaved_1f1b")


class Mortal(ThisProcess):
    """Runs so many calls, then is gone; counts them."""

    def __init__(self, most: int) -> None:
        self.most, self.calls = most, 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call, or fail as an executor does whose process has died."""
        self.calls += 1
        if self.calls <= self.most:
            return super().submit(fn, *args, **kwargs)
        future: Future[T] = Future()
        future.set_exception(LostProcessError("gone"))
        return future


def job_of(*options: str) -> Job:
    """The points of a textbook sweep; some are refused."""
    return prepare(TEXTBOOK, read_settings(options or OPTIONS))


def swept(folder: Path, workers: Mortal, job: Job | None = None) -> Sweep:
    """The sweep, with what the folder keeps."""
    job = job or job_of()

    @contextmanager
    def opened(_: int) -> Iterator[Executor]:
        yield workers

    with kept_points(folder, job) as kept:
        return run(job, opened, 1, tick=lambda: None, done=kept.done, keep=kept.add)


@pytest.mark.parametrize("most", [0, 2])
def test_a_sweep_that_was_cut_off_goes_on_where_it_was(most: int, tmp_path: Path) -> None:
    """Workers die after some points. A new run simulates the others, a third none; results are those of one run."""
    whole = swept(tmp_path / "whole", Mortal(99)).as_json()
    with pytest.raises(LostProcessError):
        swept(tmp_path / "cut", Mortal(most))
    again, third = Mortal(99), Mortal(99)
    assert swept(tmp_path / "cut", again).as_json() == whole
    assert again.calls == len(job_of().points) - most
    assert swept(tmp_path / "cut", third).as_json() == whole
    assert third.calls == 0
    lines = (tmp_path / "cut" / KEPT).read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(line)["index"] for line in lines[1:]) == sorted(p.index for p, _ in job_of().points)


def test_a_line_that_was_cut_off_is_simulated_again(tmp_path: Path) -> None:
    """A process that was killed while it wrote leaves half a line: its point is not done, all others are."""
    whole = swept(tmp_path, Mortal(99)).as_json()
    path = tmp_path / KEPT
    path.write_bytes(path.read_bytes()[:-5])
    workers = Mortal(99)
    assert swept(tmp_path, workers).as_json() == whole
    assert workers.calls == 1


def test_points_of_another_sweep_are_refused(tmp_path: Path) -> None:
    """Other values make other points: the error names the file, and what to do."""
    swept(tmp_path, Mortal(99))
    with pytest.raises(ScenarioError, match=r"(?s)points\.jsonl:1.*another sweep.*name another folder"):
        swept(tmp_path, Mortal(99), job_of("training.num_microbatches=2,3"))


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "7",
        '{"index": -1, "refused": "x"}',
        '{"index": 999, "refused": "x"}',
        '{"index": 0, "refused": "x", "more": 1}',
        '{"index": 0, "refused": "x", "results": {}}',
        '{"index": 0, "results": {}}',
        "[" * 9_000,
        "x" * 70_000,
    ],
)
def test_damaged_lines_are_refused(line: str, tmp_path: Path) -> None:
    """A line that is no point, or is too long for one, is an error with file and line."""
    path = tmp_path / KEPT
    with kept_points(tmp_path, job_of()):
        pass
    path.write_text(f"{path.read_text(encoding='utf-8')}{line}\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"points\.jsonl:2: .* point"):
        swept(tmp_path, Mortal(99))


def test_a_point_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """The second results of a point would take the place of the first."""
    swept(tmp_path, Mortal(99))
    path = tmp_path / KEPT
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines, lines[1]]), encoding="utf-8")
    with pytest.raises(ScenarioError, match=rf"points\.jsonl:{len(lines) + 1}: it is no line of a sweep's points"):
        swept(tmp_path, Mortal(99))


def test_a_file_that_is_not_ours_is_not_written_over(tmp_path: Path) -> None:
    """Text without a line's end is no first line that was cut off, unless that begins so."""
    path = tmp_path / KEPT
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"points\.jsonl:1: it is no line"), kept_points(tmp_path, job_of()):
        pass
    assert path.read_text(encoding="utf-8") == "mine"
    path.write_text('{"schema": "mesh', encoding="utf-8")
    with kept_points(tmp_path, job_of()):
        assert path.read_text(encoding="utf-8").count("\n") == 1


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(number: str, tmp_path: Path) -> None:
    """A result that was edited into NaN or infinity is an error with its line: no comparison holds with it."""
    swept(tmp_path, Mortal(99))
    path = tmp_path / KEPT
    edited, count = re.subn(
        r'("iteration_time_s": )[^,]+', rf"\g<1>{number}", path.read_text(encoding="utf-8"), count=1
    )
    assert count == 1
    path.write_text(edited, encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"points\.jsonl:2: it is no line of a sweep's points"):
        swept(tmp_path, Mortal(99))


def test_results_that_no_point_has_are_refused(tmp_path: Path) -> None:
    """A key that was damaged is an error with its line, not a traceback."""
    swept(tmp_path, Mortal(99))
    path = tmp_path / KEPT
    path.write_text(path.read_text(encoding="utf-8").replace("bubble_fraction", "bubble_friction"), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"points\.jsonl:2: it is no line of a sweep's points"):
        swept(tmp_path, Mortal(99))


def test_the_command_keeps_points_and_goes_on(tmp_path: Path) -> None:
    """``--resume DIR`` gives the same answer twice, the second time from the folder; another sweep is exit code 2."""
    command = ["sweep", str(TEXTBOOK), "--set", "training.num_microbatches=2,3", "--jobs", "1", "--json"]
    first, second = (CliRunner().invoke(group, [*command, "--resume", str(tmp_path)]) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.output == second.output
    other = CliRunner().invoke(group, [*command, "--set", "seed=1", "--resume", str(tmp_path)])
    assert other.exit_code == 2
    assert f"{KEPT}:1: it holds the points of another sweep" in other.output
    no_folder = CliRunner().invoke(group, [*command, "--resume", str(tmp_path / KEPT)])
    assert no_folder.exit_code == 2
    assert f"--resume {tmp_path / KEPT}: " in no_folder.output
