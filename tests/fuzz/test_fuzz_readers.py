"""Whatever a user hands over is read, or refused with one message: never a traceback, never without end."""

from pathlib import Path

import pytest

from tests.fuzz.mutate import from_text, to_text
from tests.fuzz.target import Target, attempt, case_of, taken
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
"""Inputs that once broke something, by reader."""
NUM_CASES = {
    "scenario": 24, "kinds": 40, "actions": 400, "cluster": 80, "profile": 24, "restated": 40, "config": 40,
    "catalogue": 180, "presets": 180, "sweep": 32, "validate": 60, "fit": 50, "residuals": 80, "plans": 240,
    "recording": 300, "points": 48, "routing": 130, "jobs": 160, "requests": 160, "lookups": 100, "compare": 20,
    "trace": 20, "chakra": 110, "drafts": 80, "trainings": 150,
}  # fmt: skip
"""Inputs of each reader: a second or so."""
REPRODUCED = "python -m tests.fuzz --only {name} --start 0 finds it again"


def by_name(target: Target) -> str:
    """Return what a test of a target is called."""
    return target.name


@pytest.mark.parametrize("target", TARGETS, ids=by_name)
def test_good_inputs_are_taken(tmp_path: Path, target: Target) -> None:
    """What inputs are made of works: else nothing behind the first check would be tried. 1: past a threshold."""
    shown = 1 if target.name in {"validate", "trace"} else 0
    for case in target.seeds():
        assert taken(target, case, tmp_path / "case") <= shown


@pytest.mark.parametrize("target", TARGETS, ids=by_name)
def test_hostile_inputs_are_read_or_refused(tmp_path: Path, target: Target) -> None:
    """Inputs changed by structure and by byte, the same ones in every run, end as they should."""
    seeds = target.seeds()
    for number in range(NUM_CASES[target.name]):
        case = case_of(target, seeds, number)
        finding = attempt(target, case, tmp_path / "case")
        assert finding is None, f"{finding.mark}\n{to_text(case)[:2_000]}\n{finding.words}"


@pytest.mark.parametrize("path", sorted(CORPUS.rglob("*.json")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_inputs_that_once_broke_something_are_refused(tmp_path: Path, path: Path) -> None:
    """What was found before stays found."""
    [target] = [target for target in TARGETS if target.name == path.parent.name]
    finding = attempt(target, from_text(path.read_text(encoding="utf-8")), tmp_path / "case")
    assert finding is None, f"{finding.mark}\n{finding.words}"
