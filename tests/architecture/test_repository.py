"""What must not be in any tracked file: addresses of package registries, paths of one machine, private notes."""

import re
from pathlib import Path

import pytest

FORBIDDEN = {
    "address of a package registry": r"(?:index-ur[l]|find-link[s]|trusted-hos[t]|py[p]i\.|download\.py[t]orch)",
    "absolute path of one machine": r"(?<![\w.:/])/(?:hom[e]|roo[t]|wor[k]|tm[p]|User[s]|mn[t])/\w",
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KE[Y]",
    "secret": r"(?i)\b(?:api_key|passwor[d]|secret_key)\s*[:=]\s*['\"]\w",
    "unfinished work": r"\b(?:TOD[O]|FIXM[E]|XX[X])\b",
    "note to oneself": r"(?i)\bthis sessio[n]\b|\bissues sho[w]\b",
}
ISSUE = re.compile(r"\s+issue #?\d+")
_LONGEST_NAME = 200
"""Characters before an issue among which its project's name is."""

TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".yaml",
    ".yml",
    ".toml",
    ".txt",
    ".csv",
    ".cfg",
    ".ini",
    ".sh",
    ".json",
    ".html",
    ".ipynb",
    "",
}


def violations(text: str) -> list[str]:
    """Return what is wrong with a text: every forbidden thing, and issues of nobody's named project."""
    found = [f"{what}: {m.group()!r}" for what, rule in FORBIDDEN.items() for m in re.finditer(rule, text)]
    nameless = [m for m in ISSUE.finditer(text) if not re.search(r"\w[-/]\w", _word_before(text, m.start()))]
    return found + [f"issue of no named project: {m.group()!r}" for m in nameless]


def _word_before(text: str, end: int) -> str:
    """Return the word that ends at a place. Searching for it with the issue is quadratic in files of long words."""
    words = text[max(0, end - _LONGEST_NAME) : end].split()
    return words[-1] if words else ""


def test_tracked_files_are_fit_to_publish(root: Path, tracked: list[Path]) -> None:
    """No tracked text file holds what only one machine or one person can use."""
    found = {}
    for path in tracked:
        if path.suffix in TEXT_SUFFIXES:
            wrong = violations(path.read_text(encoding="utf-8"))
            if wrong:
                found[path.relative_to(root).as_posix()] = wrong
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install --index-" + "url https://packages",
        "see /wor" + "k/somewhere",
        "# TO" + "DO",
        "as issue " + "12 asks",
        "api_" + "key: 'abc'",
    ],
)
def test_what_is_unfit_is_seen(text: str) -> None:
    """Each rule finds an example."""
    assert violations(text)


@pytest.mark.parametrize("text", ["as in nccl-tests issue 152", "a/b issue 3", "out/tmp/x", "https://a.org/work/x"])
def test_what_is_fit_passes(text: str) -> None:
    """Citations and relative paths are no violations."""
    assert violations(text) == []


def test_constraints_pin_exact_versions(root: Path) -> None:
    """Every package that is installed has one exact version, and nothing but versions stands there."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", pin)] == []
