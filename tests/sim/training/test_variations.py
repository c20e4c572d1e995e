"""What newer models change in a Llama: parameters, FLOP and refusals."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.plan.words.buffer import Kind
from sim.training.errors import SpecError
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.models.window import SlidingWindow
from tests.examples import examples
from tests.sim.jobs import LLAMA, dense_plan
from tests.sim.training.test_latent_attention import flop_of

windows = st.builds(
    SlidingWindow,
    size=st.integers(1, 40),
    global_every=st.none() | st.integers(2, 3),
    rotary_base=st.none() | st.just(5e2),
)
experts = st.builds(
    ExpertsSpec, num_experts=st.just(4), top_k=st.integers(1, 2), ffn_hidden_size=st.just(6),
    shared_ffn_hidden_size=st.just(12), shared_gate=st.booleans(), capacity_factor=st.just(1.0),
    routing=st.just("balanced"),
)  # fmt: skip
variations = st.fixed_dictionaries(
    {
        "num_layers": st.integers(1, 4), "own_head_size": st.none() | st.integers(1, 7).map(lambda n: 2 * n),
        "qkv_bias": st.booleans(), "query_key_norm": st.booleans(), "gate": st.sampled_from(["silu", "gelu"]),
        "post_norms": st.booleans(), "scaled_embeddings": st.booleans(), "sliding_window": st.none() | windows,
        "logit_cap": st.sampled_from([0.0, 30.0]), "attention": st.sampled_from(["core", "flash"]),
        "tied_embeddings": st.booleans(), "experts": st.none() | experts,
    }
)  # fmt: skip


@settings(max_examples=examples(16))
@given(keys=variations, cap=st.sampled_from([0.0, 50.0]))
def test_parameters_and_flop_are_those_of_the_plan(keys: dict[str, Any], cap: float) -> None:
    """However they are combined, the closed forms equal what a program holds and what its kernels count."""
    keys = LLAMA | keys | ({"score_cap": cap} if keys["attention"] == "core" else {})
    spec = TransformerSpec(**keys)
    (program,) = dense_plan(model=keys, m=2).programs
    assert spec.num_parameters == sum(b.num_elements for b in program.buffers.values() if b.kind is Kind.PARAMETER)
    assert flop_of(program) == pytest.approx(spec.model_flop(2), rel=1e-12)


def test_a_window_as_long_as_the_sequence_is_no_window() -> None:
    """The plan is then that of whole attention."""
    whole = dense_plan(model=LLAMA)
    assert dense_plan(model=LLAMA | {"sliding_window": SlidingWindow(size=32)}).programs == whole.programs
    assert dense_plan(model=LLAMA | {"sliding_window": SlidingWindow(size=31)}).programs != whole.programs


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention": "flash", "score_cap": 50.0}, "write attention: core"),
        ({"own_head_size": 7}, "head_size"),
        ({"family": "gpt", "qkv_bias": True}, "qkv_bias"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    """The error names the key or the remedy."""
    with pytest.raises(SpecError, match=message):
        TransformerSpec(**LLAMA | keys)
