"""Whatever is written, the loader answers with a scenario or with a message."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scenarios.errors import ScenarioError
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.scenario import StepScenario

QUICKSTART = Path(__file__).parents[3] / "scenarios" / "library" / "quickstart.yaml"
TEXTBOOK = QUICKSTART.with_name("textbook-1f1b.yaml")
PATHS = [
    "name", "seed", "cluster", "cluster.node", "cluster.num_nodes", "cluster.devices_per_node", "model", "model.family",
    "model.num_layers", "model.num_heads", "model.num_kv_heads", "model.hidden_size", "model.dropout", "model.preset",
    "model.attention", "model.huggingface", "model.forward", "model.hop", "training", "training.global_batch_size",
    "training.num_microbatches", "training.precision", "training.learning_rate", "parallel", "parallel.axis_order",
    "parallel.tensor", "parallel.tensor.degree", "parallel.tensor.sequence_parallel", "parallel.pipeline.degree",
    "parallel.pipeline.layers_per_stage", "parallel.pipeline.virtual_stages", "parallel.data.degree",
    "parallel.data.bucket", "parallel.data.zero_stage", "x", "x.y",
]  # fmt: skip
SCALARS = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(str),
    st.sampled_from(
        ["auto", "true", "~", "gpt", "llama", "delay", "llama-2-7b", "1 s", "0 B", "1e400 s", "25 MiB", "1"]
    ),
    st.text(max_size=12),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(st.sampled_from([part for path in PATHS for part in path.split(".")]), inner, max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}"
        )
    ),
    max_leaves=6,
)
TOKENS = st.sampled_from(
    ["name: a\n", "seed: 0\n", "model:", " {", "}", "[", "]", "\n", "  ", "- ", ": ", "&a ", "*a", "!!str ", "|", ">",
     "'", '"', "#", "%", "@", "\t", "---\n", "...\n", "? ", "<<: ", "family: gpt", "\\", "\u2028", "\x85", "\ufeff",
     "é", "\0"]
)  # fmt: skip


def outcome(path: Path, overrides: tuple[str, ...]) -> StepScenario | ScenarioError:
    """Return the scenario or the refusal; anything else that is raised fails the test."""
    try:
        return load_scenario(path, overrides)
    except ScenarioError as error:
        return error


def answer(path: Path, overrides: tuple[str, ...] = ()) -> None:
    """Load, and let nothing pass but a scenario or a whole message that can be printed."""
    result = outcome(path, overrides)
    if isinstance(result, ScenarioError):
        assert result.rule
        assert result.remedy
        assert len(str(result)) < 3000
        str(result).encode()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(TOKENS, max_size=30).map("".join) | st.text(max_size=60))
@example("a: &x [*x, *x]")
@example('a: "\\ud800"')
@example("? a\n? a\n")
@example("\ufeffname: a")
def test_random_text_gets_an_answer(tmp_path: Path, text: str) -> None:
    """Random YAML tokens and random characters never end in a traceback."""
    path = tmp_path / "a.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    answer(path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=40))
def test_random_bytes_get_an_answer(tmp_path: Path, raw: bytes) -> None:
    """Random bytes never end in a traceback."""
    path = tmp_path / "a.yaml"
    path.write_bytes(raw)
    answer(path)


@pytest.mark.parametrize("source", [QUICKSTART, TEXTBOOK], ids=["dense", "textbook"])
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=3))
def test_random_overrides_get_an_answer(source: Path, changes: list[tuple[str, str]]) -> None:
    """Random values at known and unknown keys of a good scenario never end in a traceback."""
    answer(source, tuple(f"{path}={value}" for path, value in changes))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_random_override_text_gets_an_answer(text: str) -> None:
    """Random text after ``--set`` never ends in a traceback."""
    answer(QUICKSTART, (text,))
