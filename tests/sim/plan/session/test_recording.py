"""Recordings are read as they were written; what is none is refused with file, rule and remedy."""

import math
from pathlib import Path

import numpy as np
import pytest

from sim.plan.errors import RecordingError
from sim.plan.session.observations import RecordedStep, Recording, read_recording
from sim.plan.session.protocol import Seen

VALUES = np.array([[0.1, -1e-300, 2.0**53], [math.nan, math.inf, -math.inf]])


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Every bit of every value comes back, what is no finite number and empty arrays included."""
    path = tmp_path / "seen.json"
    observed = {"a": {0: VALUES, 3: np.array(1.5)}, "nothing": {1: np.zeros((0, 2))}}
    recording = Recording((RecordedStep("one", Seen(0.1, observed)), RecordedStep("two", Seen(1e-9))))
    recording.write(path)
    found = read_recording(path)
    assert [(step.plan, step.seen.duration_s) for step in found.steps] == [("one", 0.1), ("two", 1e-9)]
    for name, by_rank in observed.items():
        for rank, values in by_rank.items():
            read = found.steps[0].seen.observed[name][rank]
            assert read.shape == values.shape
            assert np.array_equal(read, values, equal_nan=True)
    assert [file.name for file in tmp_path.iterdir()] == ["seen.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "this is no recording"),
        ("[]", "Expected `object`, got `array`"),
        ('{"schema": "other/1", "steps": []}', "its schema is 'other/1', expected 'meshtwin.recording/1'"),
        ('{"schema": "meshtwin.recording/1", "steps": [], "more": 1}', "unknown field `more`"),
        (
            '{"schema": "meshtwin.recording/1", "steps": [{"plan": "p", "duration_s": 1, "observed":'
            ' {"a": {"0": {"shape": [2], "values": [1.0]}}}}]}',
            "'a' has 1 values for shape (2,)",
        ),
        (
            '{"schema": "meshtwin.recording/1", "steps": [{"plan": "p", "duration_s": 1, "observed":'
            ' {"a": {"0": {"shape": [1], "values": ["one"]}}}}]}',
            "could not convert string to float",
        ),
        ("[" * 100_000, "this is no recording"),
    ],
    ids=["empty", "list", "schema", "unknown", "count", "word", "deep"],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """One error with the file, the rule, and what to do."""
    path = tmp_path / "seen.json"
    path.write_text(text)
    with pytest.raises(RecordingError) as caught:
        read_recording(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert str(caught.value).endswith("; record it again")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(RecordingError, match=r"none\.json: No such file or directory; name a file"):
        read_recording(tmp_path / "none.json")
