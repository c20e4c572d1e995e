"""Fixtures of the scenario tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios.workloads.registry import json_schema
from scenarios.workloads.steps.advising import trials

QUICKSTART = """\
name: GPT 145.6B on 1,536 A100
seed: 0
cluster: {node: dgx-a100-80g, num_nodes: 192}
model: {family: gpt, num_layers: 80, hidden_size: 12288, num_heads: 96, sequence_length: 2048, vocab_size: 51200}
training: {global_batch_size: 2304, microbatch_size: 2, precision: fp16, recompute: full, optimizer: adam}
parallel:
  tensor: {method: 1d, degree: 8, sequence_parallel: false}
  pipeline: {degree: 8, schedule: interleaved_1f1b, virtual_stages: 2}
  data: {degree: 24, zero_stage: 0, overlap_gradient_sync: true}
"""

TEXTBOOK = """\
name: textbook
model: {family: delay, forward: 1 s, backward_input: 1 s, backward_weight: 1 s, hop: 0.25 s}
training: {num_microbatches: 8}
parallel: {pipeline: {degree: 4, schedule: 1f1b}}
"""

Writer = Callable[..., Path]


@pytest.fixture(autouse=True)
def short_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let quick advice try no more than what takes half a second; tests of advice put a fixture in its place."""
    monkeypatch.setattr(trials, "QUICK_S", 0.5)


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    """Return a function that writes a scenario text, with replacements, to a temporary file."""

    def write_text(text: str = QUICKSTART, *replacements: tuple[str, str]) -> Path:
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "my.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    """Return the JSON Schema of scenario files, of the kinds that are shipped."""
    return json_schema()


@pytest.fixture
def quickstart() -> str:
    """Return the text of the first scenario."""
    return QUICKSTART


@pytest.fixture
def textbook() -> str:
    """Return the text of a textbook scenario."""
    return TEXTBOOK
