"""What is printed steers no terminal, whatever files and options hold; what programs read stays as it is."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.cli import main
from scenarios.console.streams import READER_GONE
from scenarios.errors import message_text, printable
from tests.traces.kineto_traces import activity, all_reduce, document, launch, write

HOSTILE = "a\x1b[31mred\x1b[0m\x1b]0;title\x9c \u202eright to left\u2066 \x9b2J \u2028 \x85 b"
"""Colours, a window's title, text that runs backwards, C1 controls, further ends of lines."""
START = [sys.executable, "-c", "from scenarios.cli import main; main()"]
ROOT = Path(__file__).parents[3]


def answer(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> tuple[str, str]:
    """Return what a command writes to its two streams, once it is known to be safe to print."""
    try:
        main([str(arg) for arg in args])
        found: object = 0
    except SystemExit as done:
        found = done.code or 0
    assert found == code
    output = capsys.readouterr()
    assert all(sign.isprintable() or sign in "\n " for sign in output.out + output.err)
    return output.out, output.err


@given(st.text())
def test_printable_text_has_no_signs_that_steer(text: str) -> None:
    """Letters of all languages, spaces and ends of lines stay; the rest becomes escapes, once and for all."""
    safe = printable(text)
    assert all(sign.isprintable() or sign == "\n" or sign.isspace() for sign in safe)
    assert not any((ord(sign) < 32 and sign != "\n") or 127 <= ord(sign) < 160 for sign in safe)
    assert printable(safe) == safe
    safe.encode()
    if text.isprintable():
        assert safe == text


@pytest.mark.parametrize("text", ["names of nodes 12", "Prüfung", "日本\u3000語", "1\u202f234 µs × 2", "two\nlines"])
def test_ordinary_text_is_printed_as_it_is(text: str) -> None:
    """Other scripts, and spaces of any width, are no danger."""
    assert printable(text) == text


def test_long_words_of_messages_are_cut() -> None:
    """A key of thousands of letters leaves the rest of a message readable: its beginning and its end are shown."""
    long = "k" * 5_000
    assert message_text(f"{long}: unknown key") == f"{'k' * 600}...{'k' * 199}: unknown key"
    assert message_text("a " * 4_000) == "a " * 4_000


def test_scenario_name_is_printed_safely_and_given_to_programs_as_it_is(write, capsys, textbook) -> None:
    """The table shows escapes; JSON holds the very name."""
    path = write(textbook, ("name: textbook", f"name: {json.dumps(HOSTILE)}"))
    out, _ = answer(capsys, path)
    assert r"a\x1b[31mred\x1b[0m\x1b]0;title\x9c \u202eright to left\u2066 \x9b2J \u2028 \x85 b, 4 ranks" in out
    assert json.loads(answer(capsys, path, "--json")[0])["scenario"] == HOSTILE


def test_recorded_names_are_printed_safely(tmp_path, capsys) -> None:
    """Names of kernels, streams and groups of a profile are as little to be trusted: trace, replay, compare."""
    events = [
        launch(1, 0), activity(f"gemm {HOSTILE}", 10, 30, correlation=1, stream=HOSTILE),
        all_reduce(50, 10, **{"Process_Group_Name": HOSTILE, "Process_Group_Ranks": None}),
    ]  # fmt: skip
    path = write(tmp_path / f"rank0 {HOSTILE}.json", document(events))
    shown = r"gemm a\x1b[31mred"
    assert shown in answer(capsys, "trace", path)[0].replace("\n", "")
    assert json.loads(answer(capsys, "trace", path, "--json")[0])["kernels"][0]["name"] == f"gemm {HOSTILE}"
    answer(capsys, "replay", path)
    other = write(tmp_path / "other.json", document([launch(1, 0), activity("gemm", 10, 60, correlation=1)]))
    assert shown in answer(capsys, "compare", path, other)[0].replace("\n", "")


def test_values_of_a_sweep_are_printed_safely_and_written_as_they_are(write, capsys, textbook, tmp_path) -> None:
    """The table shows escapes; sweep.csv and sweep.json hold what was typed."""
    option = f"name={json.dumps(HOSTILE)},b"
    out = answer(capsys, "sweep", write(textbook), "--set", option, "--jobs", 1, "--out", tmp_path / "out")[0]
    assert r"a\x1b[31mred" in out
    with (tmp_path / "out" / "sweep.csv").open(newline="", encoding="utf-8") as file:
        assert {row["name"] for row in csv.DictReader(file)} == {HOSTILE, "b"}
    points = json.loads((tmp_path / "out" / "sweep.json").read_text())["points"]
    assert {point["set"]["name"] for point in points} == {HOSTILE, "b"}


def test_dash_is_no_file_and_the_message_says_what_is(capsys) -> None:
    """Standard input has a name of its own."""
    assert "write /dev/stdin for what standard input holds" in answer(capsys, "-", code=2)[1]


@pytest.mark.parametrize(("text", "words"), [
    ('"se\\u001b[31med": 0\n', r"se\x1b[31med: unknown key"),
    ('seed: "\\u001b[31m"\n', r"not '\x1b[31m'"),
    ('"\\u202eseed": 0\n', r"\u202eseed: unknown key"),
])  # fmt: skip
def test_what_messages_repeat_is_safe(write, capsys, textbook, text: str, words: str) -> None:
    """Keys and values of a file, echoed in an error, are escaped."""
    assert words in answer(capsys, write(textbook + text), code=2)[1]


@pytest.mark.parametrize("args", [
    ("{}.yaml",), ("trace", "{}.json"), ("compare", "{}", "{}"), ("validate", "{}.yaml"), ("show", "{}/a.yaml"),
    ("a.yaml", "--set", "{}=1"), ("a.yaml", "--{}"), ("a.yaml", "--detail", "{}"), ("{}",), ("list", "{}"),
    ("residuals", "{}.csv", "--node", "{}"), ("replay", "{}"),
])  # fmt: skip
def test_file_names_and_options_are_echoed_safely(write, capsys, tmp_path, monkeypatch, args: tuple[str, ...]) -> None:
    """Whatever the command line holds comes back escaped, also where it is click that complains."""
    monkeypatch.chdir(tmp_path)
    write().rename("a.yaml")
    assert answer(capsys, *(arg.replace("{}", HOSTILE.replace("\x85", "")) for arg in args), code=2)[1]


def test_terminal_gets_colours_but_none_of_other_people(tmp_path, textbook) -> None:
    """On a terminal the program's own colours pass, and a name's become text; markup in a name is a name."""
    path = tmp_path / "a.yaml"
    path.write_text(textbook.replace("name: textbook", 'name: "x\\u001b[31m [/b] [red] y"'))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "PYTHONPATH": str(ROOT)}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen([*START, str(path)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    raw = bytearray()
    try:
        while piece := os.read(ours, 65536):
            raw += piece
    except OSError:  # its end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    shown = raw.decode()
    assert "\x1b[1mx\\x1b[31m [/b] [red] y, 4 ranks\x1b[0m" in shown
    assert "\x1b[31m [" not in shown


def test_encoding_without_a_letter_gets_its_escape(write, textbook, monkeypatch) -> None:
    """A terminal of ASCII ends no run: what it lacks is written as an escape."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with pytest.raises(SystemExit) as done:
        main([str(write(textbook, ("name: textbook", "name: café 名")))])
    sys.stdout.flush()
    assert not done.value.code
    assert b"caf\\xe9 \\u540d, 4 ranks" in raw.getvalue()


def test_closed_output_is_no_error(write, textbook, monkeypatch, capsys) -> None:
    """A program whose standard output is closed from the beginning does its work."""
    monkeypatch.setattr(sys, "stdout", None)
    for args in ([str(write(textbook))], ["list", "--json"], ["list", "nodes"]):
        with pytest.raises(SystemExit) as done:
            main(args)
        assert not done.value.code
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("args", [["list"], ["list", "--json"]])
def test_program_ends_quietly_when_nobody_reads(args: list[str]) -> None:
    """Where the reader of a pipe has gone away, there is no message, and the exit code is that of SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*START, *args], stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, check=False, text=True, timeout=120
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (READER_GONE, "")
