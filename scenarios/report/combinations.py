"""The table of combinations in Markdown: a matrix of techniques, and the reasons for refused pairs."""

from collections.abc import Iterator, Mapping
from typing import Final

from sim.training.spec.combinations import REFUSALS, Refusal, verdict_on
from sim.training.spec.techniques import TECHNIQUES

BUILT: Final = ""
NEVER: Final = "·"
"""Cells of pairs that are built, and of two values of one key, which exclude each other."""


def combination_lines() -> Iterator[str]:
    """Yield the lower half of the matrix, and a numbered list of reasons."""
    names = list(TECHNIQUES)
    last = len(names) - 1
    yield f"| | | {' | '.join(str(number) for number in range(1, last + 1))} |"
    yield f"|{'---|' * (last + 2)}"
    for row, name in enumerate(names):
        cells = [_cell(name, other) for other in names[:row]]
        yield f"| {row + 1} | {TECHNIQUES[name].label} | {' | '.join(cells + [''] * (last - row))} |"
    yield ""
    for number, refusal in enumerate(REFUSALS, start=1):
        facts = _facts(refusal)
        rule, remedy = refusal.rule.format(**facts), refusal.remedy.format(**facts)
        yield f"{number}. {_names(refusal)}: {rule}. Instead: {remedy}."


def _cell(name: str, other: str) -> str:
    verdict = verdict_on(name, other)
    if not verdict.used:
        return NEVER
    return BUILT if verdict.refusal is None else str(REFUSALS.index(verdict.refusal) + 1)


def _names(refusal: Refusal) -> str:
    ones, others = (", ".join(TECHNIQUES[name].label for name in names) for names in (refusal.ones, refusal.others))
    unless = f", unless {TECHNIQUES[refusal.unless].label}" if refusal.unless else ""
    return f"*{ones}* with *{others}*{unless}"


def _facts(refusal: Refusal) -> Mapping[str, str]:
    """Return the facts in a rule's text for no particular job."""
    names = (*refusal.ones, *refusal.others)
    schedules = [TECHNIQUES[name].label for name in names if TECHNIQUES[name].choice == "schedule"]
    stages = [name.removeprefix("zero_") for name in names if name.startswith("zero_")]
    methods = [TECHNIQUES[name].label.partition(" ")[0] for name in names if name.startswith("tensor_")]
    return {
        "schedule": " or ".join(schedules), "zero_stage": " or ".join(stages), "degree": "several",
        "tensor_method": " or ".join(methods),
    }  # fmt: skip
