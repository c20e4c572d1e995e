"""Multi-head latent attention: what it counts, keeps and communicates, and what is refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.kernels import KERNELS, TensorSpec
from sim.plan.words.buffer import Kind
from sim.plan.words.op import Collective, CollectiveKind, Compute
from sim.plan.words.program import Program
from sim.training.errors import SpecError
from sim.training.spec.models.latent import LatentAttention
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.parallelism.sharding import OsdpSpec
from tests.examples import examples
from tests.sim.jobs import LLAMA, dense_job, dense_plan
from tests.sim.training.test_memory_formulas import held_bytes

LATENT = LatentAttention(q_rank=24, kv_rank=16, head_size=8, rotary_head_size=4, value_head_size=6)
MODEL = LLAMA | {"num_kv_heads": 8, "num_layers": 2, "latent_attention": LATENT}

widths = st.integers(1, 12)
latents = st.builds(
    LatentAttention, q_rank=st.none() | widths, kv_rank=widths, head_size=widths, value_head_size=widths,
    rotary_head_size=widths.map(lambda n: 2 * n),
)  # fmt: skip


def model_with(latent: LatentAttention, **keys: Any) -> dict[str, Any]:
    """Return a model with latent attention whose hidden size its heads need not divide."""
    return MODEL | {"latent_attention": latent, "num_heads": 4, "num_kv_heads": 4, "hidden_size": 18} | keys


def flop_of(program: Program) -> float:
    """Return what all kernels of a program count."""
    specs = {name: TensorSpec(b.shape, b.dtype) for name, b in program.buffers.items()}
    ops = (op for call in program.calls for op in program.tasks[call.task].ops if isinstance(op, Compute))
    return sum(
        KERNELS[op.kernel].work([specs[n] for n in op.reads], [specs[n] for n in op.writes], op.attributes).flop
        for op in ops
    )


@settings(max_examples=examples(10))
@given(latent=latents)
def test_parameters_and_flop_are_those_of_the_plan(latent: LatentAttention) -> None:
    """Whatever the sizes, the closed forms equal what one rank's program holds and what its kernels count."""
    spec = TransformerSpec(**model_with(latent))
    (program,) = dense_plan(model=model_with(latent), m=2).programs
    assert spec.num_parameters == sum(b.num_elements for b in program.buffers.values() if b.kind is Kind.PARAMETER)
    assert flop_of(program) == pytest.approx(spec.model_flop(2), rel=1e-12)


def test_equal_heads_without_compression_count_as_ordinary_attention() -> None:
    """Scores and values of heads as wide as the hidden state's share count 2h per query and key."""
    latent = LatentAttention(kv_rank=16, head_size=4, rotary_head_size=4, value_head_size=8)
    ordinary, spec = (TransformerSpec(**MODEL | {"latent_attention": x}) for x in (None, latent))
    assert spec.score_products == ordinary.score_products == 2 * spec.hidden_size
    assert spec.attention_products - latent.products(64, 8) == 0


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (4, False), (4, True)])
def test_a_layer_keeps_what_its_backward_reads(*, tp: int, sequence_parallel: bool, recompute: str) -> None:
    """One more layer of DeepSeek-V2-Lite's widths keeps, per token, what its products, norms and attention read again.

    In 16 bits: both residual inputs and their norms; the latents before and after their norms, of a rank's part of the
    sequence; q, k and v of its heads and the output; the MLP's three products. In fp32: four norms' statistics, and the
    log-sum-exp, which selective recomputation makes again.
    """
    s, b, h, ffn, heads, ranks = 512, 2, 2048, 10944, 16, 1536 + 512
    latent = LatentAttention(q_rank=1536, kv_rank=512, head_size=128, rotary_head_size=64, value_head_size=128)
    model = MODEL | {
        "latent_attention": latent, "hidden_size": h, "num_heads": heads, "num_kv_heads": heads, "ffn_hidden_size": ffn,
        "sequence_length": s,
    }  # fmt: skip
    rows = s // tp if sequence_parallel else s
    kept = 2 * b * (rows * (4 * h + 2 * ranks) + s * (heads * (192 + 192 + 128 + 128) + 3 * ffn) / tp)
    statistics = 4 * b * (rows * 4 + s * heads / tp * (recompute == "none"))
    keys: dict[str, Any] = {"tp": tp, "sequence_parallel": sequence_parallel, "recompute": recompute, "b": b}
    held = [
        held_bytes(dense_plan(model=model | {"num_layers": layers}, precision="bf16", **keys).programs[0])
        for layers in (2, 3)
    ]
    assert held[1] - held[0] == pytest.approx(kept + statistics, rel=1e-3)


def test_sequence_parallelism_gathers_latents_and_not_the_hidden_state() -> None:
    """Forward, attention gathers q_rank + kv_rank + rotary channels per token in three collectives."""
    (program,) = dense_plan(tp=4, sequence_parallel=True, model=MODEL | {"num_layers": 1}).programs
    gathers = [
        program.buffers[op.writes[0]].shape
        for op in program.tasks["forward.0"].ops
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_GATHER
    ]
    assert sorted(gathers) == sorted([(32, 1, 24), (32, 1, 16), (32, 1, 1, 4), (32, 1, 64), (32, 1, 64)])


@pytest.mark.parametrize(("keys", "key", "rule", "remedy"), [
    ({"model": MODEL | {"num_kv_heads": 4}}, "model.num_kv_heads", "keys and values of its own, 8", "leave it out"),
    ({"model": MODEL | {"family": "gpt"}}, "model.latent_attention", "llama family, and this is gpt", "leave it out"),
    ({"model": MODEL, "tp": 16}, "parallel.tensor.degree", "num_heads 8 does not divide by tensor degree 16", "model"),
    ({"model": MODEL, "dp": 2, "osdp": OsdpSpec()}, "parallel.data.osdp", "one projection", "zero_stage: 3"),
])  # fmt: skip
def test_what_does_not_go_with_latent_attention_is_refused(
    keys: dict[str, Any], key: str, rule: str, remedy: str
) -> None:
    """Grouped heads, another family, too many ranks, and sharding by operator are named with a remedy."""
    with pytest.raises(SpecError) as caught:
        dense_job(**keys)
    assert caught.value.key == key
    assert rule in caught.value.rule
    assert remedy in caught.value.remedy


def test_odd_rotary_width_is_refused() -> None:
    """Positions turn pairs."""
    with pytest.raises(SpecError, match="turn pairs of channels, and 5 is odd; write 6"):
        LatentAttention(kv_rank=4, head_size=4, rotary_head_size=5, value_head_size=4)
