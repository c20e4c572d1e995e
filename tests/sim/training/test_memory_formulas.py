"""Activations that traced plans keep, against published closed forms."""

from math import prod

import pytest

from costmodels.memory import allocated_bytes
from sim.engine.running.memory import memory_use
from sim.plan.facts.liveness import lifetimes
from sim.plan.words.buffer import Scope
from sim.plan.words.program import Program
from sim.training.pipeline.spec import Recompute
from tests.activation_formulas import activation_bytes_per_layer, logits_extra_bytes
from tests.sim.jobs import GPT, LLAMA, dense_plan

SIZES = [(6144, 64, 4), (12288, 96, 1), (20480, 128, 1)]
"""(hidden, heads, micro-batch) of the 22B, 175B and 530B models of Korthikanti et al. 2022."""


def held_bytes(program: Program) -> int:
    """Return what a program holds for its one micro-batch between its forward and its backward."""
    use = memory_use(program)
    at = {call.task: index for index, call in enumerate(program.calls)}
    return int(use.before_bytes[at["backward.0"]] - use.before_bytes[at["forward.0"]])


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (8, False), (8, True)])
@pytest.mark.parametrize(("hidden", "heads", "b"), SIZES)
def test_activations_of_a_layer_equal_korthikantis_formulas(
    *, hidden: int, heads: int, b: int, tp: int, sequence_parallel: bool, recompute: Recompute
) -> None:
    """One more layer keeps what table 2 says, to 0.1 %: the norms' statistics, which the table leaves out."""
    model = GPT | {
        "hidden_size": hidden, "num_heads": heads, "num_kv_heads": heads, "ffn_hidden_size": 4 * hidden,
        "sequence_length": 2048, "vocab_size": 51200,
    }  # fmt: skip
    held = []
    for layers in (2, 3):
        (program,) = dense_plan(
            tp=tp, sequence_parallel=sequence_parallel, recompute=recompute, b=b, model=model | {"num_layers": layers}
        ).programs
        held.append(held_bytes(program))
    expected = activation_bytes_per_layer(
        sequence_length=2048, microbatch_size=b, hidden_size=hidden, num_heads=heads, tensor_degree=tp,
        sequence_parallel=sequence_parallel, recompute=recompute,
    )  # fmt: skip
    assert held[1] - held[0] == pytest.approx(expected, rel=1e-3)


def test_ranks_share_out_what_recomputed_layers_keep() -> None:
    """A layer keeps 2sbh/t bytes of its input, which backward gathers."""
    s, b, h, t = 2048, 4, 6144, 8
    model = GPT | {"hidden_size": h, "num_heads": 64, "num_kv_heads": 64, "sequence_length": s}
    held = [
        held_bytes(program)
        for n in (2, 3)
        for program in dense_plan(
            tp=t, recompute="full", distribute_saved_activations=True, b=b, model=model | {"num_layers": n}
        ).programs
    ]
    assert held[1] - held[0] == pytest.approx(2 * s * b * h / t, rel=1e-3)


@pytest.mark.parametrize("tp", [1, 8])
def test_the_model_ends_keep_embedding_mask_final_norm_and_logits(tp: int) -> None:
    """Beside its layers a lone sequence-parallel stage keeps the published extras, and ids, labels and row sums.

    Korthikanti et al. 2022, section 4.3: 4sbh/t (1 + V/h); the embedding's mask sbh/t; our final norm's
    input is the last layer's output, 2sbh/t, which their layer count leaves to the next layer.
    """
    s, b, h, vocabulary = 2048, 1, 12288, 51200
    model = GPT | {
        "hidden_size": h, "num_heads": 96, "num_kv_heads": 96, "ffn_hidden_size": 4 * h, "sequence_length": s,
        "vocab_size": vocabulary, "num_layers": 1,
    }  # fmt: skip
    (program,) = dense_plan(tp=tp, sequence_parallel=tp > 1, model=model).programs
    layer = activation_bytes_per_layer(
        sequence_length=s, microbatch_size=b, hidden_size=h, num_heads=96, tensor_degree=tp,
        sequence_parallel=tp > 1, recompute="none",
    )  # fmt: skip
    extra = logits_extra_bytes(
        sequence_length=s, microbatch_size=b, hidden_size=h, vocab_size=vocabulary, tensor_degree=tp
    )
    mask = s * b * h / tp
    assert held_bytes(program) - layer == pytest.approx(extra + mask, rel=0.02)


@pytest.mark.parametrize(("tp", "tied"), [(1, False), (2, False), (2, True)])
def test_placeholders_are_a_layers_weights_once_and_the_output_layers_for_a_while(tp: int, *, tied: bool) -> None:
    """Whatever the depth, a 16-bit tensor per shape of weight is kept, and one of the output layer's comes and goes."""
    model = LLAMA | {"num_layers": 3, "vocab_size": 4096, "tied_embeddings": tied}
    keys = {"tp": tp, "sequence_parallel": tp > 1, "model": model, "precision": "bf16", "m": 2}
    (plain,), (program,) = (dense_plan(**keys, gradient_placeholders=held).programs for held in (False, True))
    shapes = {
        b.shape
        for n, b in plain.buffers.items()
        if n.startswith("layer0.") and n.endswith(".weight") and "norm" not in n
    }
    assert len(shapes) == 4
    weights = [allocated_bytes(2 * prod(shape)) for shape in shapes]
    kept = memory_use(program).before_bytes - memory_use(plain).before_bytes
    assert set(kept.tolist()) == {sum(weights)}
    added = program.buffers.keys() - plain.buffers.keys()
    (fresh,) = (b for n, b in program.buffers.items() if n in added and b.scope is Scope.MICROBATCH)
    assert fresh.num_bytes == 2 * 4096 * model["hidden_size"] // tp
    births = [name for life in lifetimes(program) for _, name in life.births].count(fresh.name)
    assert births == 2
