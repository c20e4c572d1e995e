"""Each mistake of the table gets exit code 2, one message that names the key, and a remedy that works when followed."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from scenarios.cli import main
from tests.scenarios.conftest import QUICKSTART
from tests.scenarios.reading.mistakes import COMMANDS, FILES, CommandMistake, Edits, FileMistake
from tests.scenarios.refusing import refuse
from tests.traces.kineto_traces import activity, document, launch, write
from traces.parquet import write_timeline
from traces.timeline import TimelineBuilder

TINY = Path(__file__).parents[3] / "scenarios" / "library" / "tiny-gpt-2x2.yaml"


class _WorkBeginsError(BaseException):
    """Raised in the place of work on processes: the command has accepted all that it was told."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory: a scenario, files that are none, a result, and a profile of torch."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(QUICKSTART)
    Path("empty.yaml").touch()
    Path("list.yaml").write_text("- 1\n- 2\n")
    Path("notes.txt").write_text("a run of yesterday\n")
    for folder in ("result", "profile"):
        Path(folder).mkdir()
    builder = TimelineBuilder()
    builder.add(rank=0, stream="compute", name="a", kind="compute", start_s=0.0, end_s=1.0)
    write_timeline(builder.build(), Path("result/timeline.parquet"))
    write(Path("profile/rank0.json"), document([launch(1, 0), activity("gemm", 10, 30, correlation=1)]))
    return tmp_path


@pytest.fixture
def accepts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Return a function that runs a command line to its end, or until it starts processes, and expects no refusal."""

    def begin(*_args: object, **_named: object) -> None:
        raise _WorkBeginsError

    monkeypatch.setattr("scenarios.workloads.steps.executing.execution.load_torch_backend", begin)
    monkeypatch.setattr("scenarios.commands.measured.calibrate.calibrate_machine", begin)

    def run(*args: str) -> None:
        with pytest.raises((SystemExit, _WorkBeginsError)) as caught:
            main(list(args))
        error = capsys.readouterr().err
        if isinstance(caught.value, SystemExit):
            assert caught.value.code in {None, 0}, error

    return run


def edited(text: str, edits: Edits) -> str:
    """Return a text with its parts replaced; each must be there."""
    for old, new in edits:
        assert old in text, (old, text)
        text = text.replace(old, new, 1)
    return text


def test_table_is_as_long_as_it_should_be() -> None:
    """The table has at least 65 mistakes, and each of them once."""
    made = [mistake.made for mistake in (*FILES, *COMMANDS)]
    assert len(made) == len(set(made)) >= 65


@pytest.mark.parametrize("mistake", FILES, ids=lambda mistake: mistake.made[0][1][:40])
def test_mistake_in_a_file(here: Path, capsys, accepts, mistake: FileMistake) -> None:
    """The message names the key and its place; with the remedy in the file, the scenario is valid."""
    path = here / "my.yaml"
    path.write_text(wrong := edited(QUICKSTART, mistake.made))
    message = refuse(capsys, here, "schedule", str(path))
    assert message.startswith(f"error: {path}:")
    assert message.count("error:") == 1
    assert mistake.names in message
    assert mistake.says in message
    path.write_text(edited(wrong, mistake.follow))
    accepts("schedule", str(path))


@pytest.mark.parametrize("mistake", COMMANDS, ids=lambda mistake: mistake.made[:60])
def test_mistake_on_the_command_line(here: Path, capsys, accepts, mistake: CommandMistake) -> None:
    """The message names option, file or argument; the remedy is a command line that runs."""
    filled = [text.format(file=here / "my.yaml", tiny=TINY, here=here) for text in mistake]
    made, names, says, follow = filled
    message = refuse(capsys, here, *shlex.split(made))
    assert message.count("error:") + message.count("Error:") == 1
    assert names in message
    assert says in message
    accepts(*shlex.split(follow))
