"""Simulations of a search, kept in a folder: a search that was cut off, or a similar one, does none of them again."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct, convert

from scenarios.planning.proof import Proof
from scenarios.results.kept_lines import Keep, KeptFile, kept_lines
from scenarios.summaries.as_json import as_json
from scenarios.version import VERSION
from scenarios.workloads.steps.scenario import StepScenario

KEPT_PROOFS: Final = "proofs.jsonl"
"""A line for the program's version, then one per strategy, in the order in which their simulations ended."""
_MOST_PROOFS: Final = 1_000_000


class _KeptProof(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the file: the key of a simulation, and what came of it or the rule that refuses it."""

    key: str
    proof: Proof | None = None
    refused: str | None = None


class KeptProofs:
    """What came of simulations, by key; each new one is a line of the file at once. Safe from several threads."""

    def __init__(self, known: dict[str, Proof | str], keep: Keep) -> None:
        self.known = known
        self._keep = keep

    def add(self, key: str, outcome: Proof | str) -> None:
        """Keep what came of a simulation."""
        refused, proof = (outcome, None) if isinstance(outcome, str) else (None, outcome)
        self._keep(as_json(_KeptProof(key=key, proof=proof, refused=refused)))


def key_of(scenario: StepScenario, room_bytes: int, bar_s: float) -> str:
    """Return what tells simulations of strategies apart: all keys of the scenario, and what else ``prove`` is given.

    Files that the scenario names count by their names.
    """
    facts = json.dumps([scenario.document.data, room_bytes, bar_s], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()


@contextmanager
def kept_proofs(folder: Path) -> Iterator[KeptProofs]:
    """Yield the simulations that a folder holds. A last line that was cut off is dropped.

    Raises ScenarioError for a folder that cannot be written, or holds those of another version.
    """
    known: dict[str, Proof | str] = {}

    def take(entry: object) -> None:
        found = convert(entry, _KeptProof)
        if (found.proof is None) == (found.refused is None):
            raise ValueError("neither a simulation nor a refusal, or both")
        if found.proof is not None and found.proof.interval_s is not None:
            low_s, high_s = found.proof.interval_s
            if not 0.0 < low_s <= high_s:
                raise ValueError("an interval that ends before it begins")
        outcome = found.proof if found.refused is None else found.refused
        assert outcome is not None
        known[found.key] = outcome

    file = KeptFile(
        name=KEPT_PROOFS,
        head={"schema": "meshtwin.proofs/1", "version": VERSION},
        most_lines=_MOST_PROOFS,
        no_line="it is no line of a search's simulations",
        not_ours="it holds no simulations of a search, or those of another version",
    )
    with kept_lines(folder, file, take) as keep:
        yield KeptProofs(known, keep)
