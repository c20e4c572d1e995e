"""Whatever a user hands over is read, or refused with one message: never a traceback, never without end."""

from pathlib import Path

import pytest

from tests.fuzz.mutate import from_text, to_text
from tests.fuzz.target import Target, attempt, case_of
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
"""Inputs that once broke something, by reader."""
NUM_CASES = {
    "scenario": 100, "actions": 1_200, "cluster": 400, "profile": 90, "restated": 150, "config": 150, "catalogue": 800,
    "presets": 800, "sweep": 110, "validate": 250, "fit": 400, "residuals": 350, "plans": 900, "recording": 900,
    "routing": 400, "requests": 600, "lookups": 300, "compare": 100, "trace": 90, "chakra": 450,
}  # fmt: skip
"""Inputs of each reader: three seconds or so."""
REPRODUCED = "python -m tests.fuzz --only {name} --start 0 finds it again"


def by_name(target: Target) -> str:
    """Return what a test of a target is called."""
    return target.name


@pytest.mark.parametrize("target", TARGETS, ids=by_name)
def test_good_inputs_are_taken(tmp_path: Path, target: Target) -> None:
    """What inputs are made of works: else nothing behind the first check would be tried. 1: past a threshold."""
    for case in target.seeds():
        assert attempt(target, case, tmp_path / "case") is None
        shown = 1 if target.name == "validate" else 0
        assert target.read(tmp_path / "case") <= shown or target.name == "trace"


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
