"""What the training room refuses, and how it splits layers and counts parameters and FLOP."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.plan.words.buffer import Kind
from sim.training.errors import SpecError
from sim.training.spec.job import DelaySpec, ParallelSpec, PipelineSpec, TextbookTraining, check_batch, split_layers
from sim.training.spec.models.model import TransformerSpec
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan

SMALL = GPT | {"num_layers": 4}


@pytest.mark.parametrize(
    ("keys", "key", "rule", "remedy"),
    [
        ({"model": GPT | {"num_heads": 7}}, "model.num_heads", "hidden_size 64 does not divide by num_heads 7",
         "divisor of 64"),
        ({"model": GPT | {"num_kv_heads": 3}}, "model.num_kv_heads", "num_heads 8 does not divide by num_kv_heads 3",
         "divisor of 8"),
        ({"model": LLAMA | {"dropout": 0.1}}, "model.dropout", "llama family has no dropout", "leave it out"),
        ({"model": LLAMA | {"hidden_size": 24}}, "model.num_heads", "even head size, 24 / 8 = 3", "another num_heads"),
        ({"pp": 2, "schedule": "interleaved_1f1b"}, "parallel.pipeline.virtual_stages",
         "2 or more virtual stages, got 1", "virtual_stages: 2, or schedule: 1f1b"),
        ({"pp": 2, "schedule": "gpipe", "virtual_stages": 2}, "parallel.pipeline.virtual_stages",
         "gpipe has one virtual stage per rank, got 2", "schedule: interleaved_1f1b, or virtual_stages: 1"),
        ({"tp": 3}, "parallel.tensor.degree", "num_heads 8 does not divide by tensor degree 3",
         "change model.num_heads"),
        ({"tp": 4, "model": GPT | {"num_kv_heads": 2}}, "parallel.tensor.degree",
         "num_kv_heads 2 does not divide by tensor degree 4", "a degree that divides 2"),
        ({"tp": 8, "model": GPT | {"ffn_hidden_size": 100}}, "parallel.tensor.degree",
         "ffn_hidden_size 100 does not divide by tensor degree 8", "model.ffn_hidden_size"),
        ({"tp": 8, "model": GPT | {"vocab_size": 100}}, "parallel.tensor.degree",
         "vocab_size 100 does not divide by tensor degree 8", "model.vocab_size"),
        ({"tp": 8, "sequence_parallel": True, "model": GPT | {"sequence_length": 28}}, "parallel.tensor.degree",
         "sequence_length 28 does not divide by tensor degree 8", "model.sequence_length"),
        ({"tp": 8, "pp": 2, "scatter_gather": True, "model": GPT | {"sequence_length": 28}}, "parallel.tensor.degree",
         "sequence_length 28 does not divide by tensor degree 8", "model.sequence_length"),
        ({"sequence_parallel": True}, "parallel.tensor.sequence_parallel", "there is only one",
         "sequence_parallel: false"),
        ({"m": 4, "schedule": "interleaved_1f1b", "virtual_stages": 2}, "parallel.pipeline.degree",
         "interleaved_1f1b needs 2 or more pipeline ranks, got 1", "schedule: 1f1b"),
        ({"pp": 4, "m": 6, "schedule": "interleaved_1f1b", "virtual_stages": 2, "model": GPT | {"num_layers": 8}},
         "parallel.pipeline.schedule", "needs a multiple of 4 micro-batches (the pipeline degree), got 6",
         "the next valid number is 8: write training.global_batch_size: 8"),
        ({"pp": 4, "m": 6, "b": 3, "dp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2,
          "model": GPT | {"num_layers": 8}}, "parallel.pipeline.schedule", "multiple of 4 micro-batches",
         "the next valid number is 8: write training.global_batch_size: 48"),
        ({"pp": 2, "layers_per_stage": (0, 4)}, "parallel.pipeline.layers_per_stage",
         "number 0 of the list is 0",
         "list 2 numbers of 1 or more that add up to 4"),
        ({"pp": 2, "layers_per_stage": (5, -1)}, "parallel.pipeline.layers_per_stage",
         "number 1 of the list is -1",
         "list 2 numbers of 1 or more that add up to 4"),
        ({"pp": 2, "layers_per_stage": (1, 2)}, "parallel.pipeline.layers_per_stage",
         "2 stages with 3 layers in all, where 2 virtual stages must hold 4 layers", "list 2 numbers that add up to 4"),
        ({"pp": 2, "layers_per_stage": (4,)}, "parallel.pipeline.layers_per_stage", "1 stages with 4 layers", "list 2"),
        ({"pp": 2, "recompute_per_stage": ("full",)}, "parallel.pipeline.recompute_per_stage", "1 stages are named",
         "list 2 of none, selective, full"),
        ({"tp": 2, "distribute_saved_activations": True}, "parallel.tensor.distribute_saved_activations",
         "recomputed whole, and none is", "training.recompute: full"),
        ({"tp": 2, "sequence_parallel": True, "distribute_saved_activations": True, "recompute": "full"},
         "parallel.tensor.distribute_saved_activations", "sequence parallelism cuts it", "leave it out"),
        ({"distribute_saved_activations": True, "recompute": "full"}, "parallel.tensor.distribute_saved_activations",
         "there is only one", "leave it out"),
        ({"checkpoint_early_stop": True}, "training.checkpoint_early_stop", "nothing is recomputed",
         "write training.recompute: full"),
        ({"pp": 8}, "parallel.pipeline.degree", "4 layers cannot fill 8 virtual stages (degree 8 x virtual_stages 1)",
         "smaller degree"),
        ({"gradient_placeholders": True, "fused_gradient_accumulation": False}, "training.gradient_placeholders",
         "a second kernel adds them", "fused_gradient_accumulation: true"),
        ({"set_gradients_to_none": True}, "training.set_gradients_to_none",
         "its weight's type, bfloat16, and here it is accumulated in float32", "low_precision_gradients: true"),
        ({"set_gradients_to_none": True, "precision": "fp32", "zero_stage": 2, "dp": 2},
         "training.set_gradients_to_none", "zero_stage 2 adds gradients up in shards", "zero_stage: 1"),
        ({"prescale_gradients": True, "dp": 2}, "training.prescale_gradients", "not for overlap_gradient_sync",
         "overlap_gradient_sync: false"),
        ({"check_gradients": True, "dp": 2, "zero_stage": 2}, "training.check_gradients", "not for zero_stage 2",
         "leave it out"),
        ({"check_gradients": True, "pp": 2, "virtual_stages": 2, "schedule": "aiao", "dp": 2, "deferred_sync": 0.5},
         "training.check_gradients", "not for schedule aiao", "leave it out"),
    ],
)  # fmt: skip
def test_bad_specification_names_key_rule_and_remedy(keys: dict[str, Any], key: str, rule: str, remedy: str) -> None:
    """Every rule says which scenario key breaks it, with both sides worked out, and what to write instead."""
    with pytest.raises(SpecError) as caught:
        dense_job(**{"model": SMALL, "m": 2} | keys)
    assert caught.value.key == key
    assert rule in caught.value.rule
    assert remedy in caught.value.remedy
    assert str(caught.value) == f"{caught.value.key}: {caught.value.rule}; {caught.value.remedy}"


def test_batch_that_does_not_divide_says_the_next_that_does() -> None:
    """The global batch must be whole micro-batches on every replica."""
    training = dense_job(m=1, b=3).training
    with pytest.raises(SpecError, match=r"3 does not divide by microbatch_size x data degree = 3 x 4 = 12.*e\.g\. 12"):
        check_batch(training, ParallelSpec(data_degree=4))


def test_textbook_jobs_check_their_schedule_too() -> None:
    """Interleaving needs a multiple of P micro-batches in textbook jobs as well."""
    with pytest.raises(SpecError, match=r"the next valid number is 12: write training\.num_microbatches: 12"):
        TextbookTraining(
            model=DelaySpec(forward_s=1, backward_input_s=1, backward_weight_s=1),
            num_microbatches=9,
            pipeline=PipelineSpec(degree=4, schedule="interleaved_1f1b", virtual_stages=2),
        )


def pipeline_of(stages: int, v: int) -> PipelineSpec:
    """Return a pipeline of ``stages`` ranks with v virtual stages each."""
    return PipelineSpec(degree=stages, schedule="interleaved_1f1b" if v > 1 else "1f1b", virtual_stages=v)


@given(layers=st.integers(1, 300), degree=st.integers(2, 20), v=st.integers(1, 4))
def test_layers_are_split_whole_and_evenly(layers: int, degree: int, v: int) -> None:
    """Stages add up to all layers, none is empty, sizes differ by at most one; where it divides all are equal."""
    assume(layers >= degree * v)
    split = split_layers(layers, pipeline_of(degree, v))
    assert len(split) == degree * v
    assert sum(split) == layers
    assert max(split) - min(split) <= 1
    assert min(split) >= 1
    if layers % (degree * v) == 0:
        assert len(set(split)) == 1


@given(inner=st.integers(1, 20), stages=st.integers(3, 20))
def test_embedding_and_head_count_as_a_layer_where_that_divides(inner: int, stages: int) -> None:
    """Llama 3's 126 layers on 16 stages: 7 on the first and the last, 8 between; on 128 stages none there."""
    split = split_layers(inner * stages - 2, pipeline_of(stages, 1))
    assert split == (inner - 1, *[inner] * (stages - 2), inner - 1)


def test_llama_3_405b_is_split_as_published() -> None:
    """126 layers on 16 stages: first and last hold one layer less."""
    assert split_layers(126, pipeline_of(16, 1)) == (7, *[8] * 14, 7)


def test_remainder_goes_to_the_stages_after_the_first() -> None:
    """Where neither divides, the earliest stages after the first take one more."""
    assert split_layers(11, pipeline_of(4, 1)) == (2, 3, 3, 3)
    assert split_layers(9, pipeline_of(4, 1)) == (2, 3, 2, 2)


def test_given_layers_are_taken_as_they_are() -> None:
    """layers_per_stage overrides the split."""
    assert split_layers(5, PipelineSpec(degree=2, layers_per_stage=(1, 4))) == (1, 4)


@pytest.mark.parametrize("model", [GPT, LLAMA, GPT | {"tied_embeddings": False}, LLAMA | {"tied_embeddings": True}])
def test_num_parameters_is_what_the_plan_holds(model: dict[str, Any]) -> None:
    """The closed form equals the parameters that one rank's program has, tied embeddings counted once."""
    (program,) = dense_plan(m=1, model=model).programs
    held = sum(b.num_elements for b in program.buffers.values() if b.kind is Kind.PARAMETER)
    assert TransformerSpec(**model).num_parameters == held


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "billions"),
    [(24, 2304, 24, 1.7), (40, 6144, 48, 18.4), (80, 12288, 96, 145.6), (128, 25600, 160, 1008.0)],
)
def test_num_parameters_of_published_models(layers: int, hidden: int, heads: int, billions: float) -> None:
    """The models of Narayanan et al. 2021, table 1, have the published number of parameters."""
    model = TransformerSpec(**GPT | {
        "num_layers": layers, "hidden_size": hidden, "num_heads": heads, "num_kv_heads": heads,
        "ffn_hidden_size": 4 * hidden, "sequence_length": 2048, "vocab_size": 51200,
    })  # fmt: skip
    assert round(model.num_parameters / 1e9, 1) == billions


@given(
    batch=st.integers(1, 64), s=st.sampled_from([128, 2048]), h=st.sampled_from([256, 4096]), layers=st.integers(1, 96),
    vocabulary=st.sampled_from([1024, 51200]),
)  # fmt: skip
def test_model_flop_follows_the_papers_formula(batch: int, s: int, h: int, layers: int, vocabulary: int) -> None:
    """A GPT takes 72 B s L h² (1 + s/6h + V/12Lh) FLOP (Korthikanti et al. 2022, appendix A)."""
    model = TransformerSpec(**GPT | {
        "num_layers": layers, "hidden_size": h, "ffn_hidden_size": 4 * h, "sequence_length": s,
        "vocab_size": vocabulary,
    })  # fmt: skip
    expected = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert model.model_flop(batch) == pytest.approx(expected, rel=1e-12)
