"""Plans of prompts and decoding: their memory, their communication, and what cannot be built."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from costmodels.kernels import KERNELS
from sim.inference.builder import build_inference
from sim.inference.spec import InferenceJob, inference_model
from sim.plan.checking.check import check
from sim.plan.facts.liveness import lifetimes
from sim.plan.words.buffer import Kind
from sim.plan.words.op import Collective, Compute, Send
from sim.plan.words.program import Plan, Program
from sim.training.errors import SpecError
from sim.training.sequence.registry import sequence_method
from sim.training.spec.job import ParallelSpec, PipelineSpec
from sim.training.spec.models.window import SlidingWindow
from sim.training.tensor.one_dimensional import OneDimensional
from tests.backends.inference_runs import EXPERTS, GPT, GROUPED, LATENT, job


def test_caches_hold_every_token_in_whole_blocks() -> None:
    """Keys and values of L layers take 2 g d elements per slot; slots are whole blocks of each last length."""
    wanted = job(block_tokens=4, prompt_tokens=(5, 8, 1), output_tokens=4)
    assert wanted.slots == (8, 12, 4)  # 5 + 3, 8 + 3 and 1 + 3 tokens are written
    program = build_inference(wanted, "cache").programs[0]
    model = wanted.model
    elements = 2 * model.num_layers * model.num_kv_heads * model.head_size * sum(wanted.slots)
    assert held(program, Kind.CACHE) == 8 * elements


def test_eight_bits_take_a_byte_per_weight_and_key() -> None:
    """Weights of products take a byte each and a scale, all others two; caches take a byte per element."""
    wide, narrow = (
        build_inference(job(tp=2, precision=p, cache_precision=c), "bytes").programs[0]
        for p, c in (("bf16", None), ("fp8", "fp8"))
    )
    assert held(narrow, Kind.CACHE) * 2 == held(wide, Kind.CACHE)
    products = 4 * GROUPED.num_layers
    of_products = GROUPED.num_layers * (GROUPED.attention_parameters + GROUPED.mlp_parameters - 2 * GROUPED.hidden_size)
    assert held(wide, Kind.PARAMETER) - held(narrow, Kind.PARAMETER) == of_products // 2 - 4 * products
    kernels = Counter(op.kernel for op in narrow.tasks["decode.0@1"].ops if isinstance(op, Compute))
    assert kernels["float8_matmul"] == kernels["cast_float8"] == products


def test_latent_attention_caches_one_vector_per_token() -> None:
    """A cache of latents has r + p elements per slot and layer, whole on every tensor-parallel rank."""
    latent = LATENT.latent_attention
    assert latent is not None
    for tensor in (1, 2):
        wanted = job(LATENT, tp=tensor)
        elements = LATENT.num_layers * (latent.kv_rank + latent.rotary_head_size) * sum(wanted.slots)
        assert held(build_inference(wanted, "latent").programs[0], Kind.CACHE) == 8 * elements


def held(program: Program, kind: Kind) -> int:
    """Return the bytes of all buffers of a kind."""
    return sum(buffer.num_bytes for buffer in program.buffers.values() if buffer.kind is kind)


def test_tensor_and_pipeline_ranks_share_weights_and_caches() -> None:
    """Over t ranks and P stages each has a part 1/tP of the caches; all weights together are those of the model."""
    whole = build_inference(job(), "alone").programs[0]
    shared = build_inference(job(tp=2, pp=2), "shared")
    assert all(held(program, Kind.CACHE) * 4 == held(whole, Kind.CACHE) for program in shared.programs)
    assert held(whole, Kind.PARAMETER) == 8 * GROUPED.num_parameters


@pytest.mark.parametrize("changes", [{}, {"tp": 2}, {"model": EXPERTS, "ep": 2}])
def test_nothing_lives_on_but_caches_and_chosen_tokens(changes: dict[str, Any]) -> None:
    """A plan has no gradients and keeps no activations: after a pass only caches and its chosen tokens live."""
    (program,) = build_inference(job(**changes), "kept").programs
    assert not held(program, Kind.GRADIENT)
    caches = {name for name, buffer in program.buffers.items() if buffer.kind is Kind.CACHE}
    assert len(caches) == 2 * GROUPED.num_layers
    live: set[str] = set()
    *others, _ = zip(program.calls, lifetimes(program), strict=True)
    for index, (_, life) in enumerate(others):
        live = (live | {name for _, name in life.births}) - {name for _, name in life.deaths}
        assert live == caches | {f"chosen@{index}"}


def collectives(program: Program, task: str) -> Counter[str]:
    """Return how many collectives of each kind a task has."""
    return Counter(str(op.kind) for op in program.tasks[task].ops if isinstance(op, Collective))


def test_a_step_communicates_as_a_forward_does() -> None:
    """Two sums per layer and one of embedded tokens; logits are gathered; experts exchange tokens twice."""
    program = build_inference(job(tp=2), "tp").programs[0]
    for task in ("prefill.0@0", "decode.0@1"):
        assert collectives(program, task) == {"all_reduce": 2 * GROUPED.num_layers + 1, "all_gather": 1}
    program = build_inference(job(EXPERTS, ep=2), "ep").programs[0]
    assert collectives(program, "decode.0@3") == {"all_to_all": 2 * EXPERTS.num_expert_layers}


def test_stages_send_hidden_states_on_and_tokens_back() -> None:
    """A step sends b x h elements from stage to stage, and b tokens from the last stage to the first."""
    plan = build_inference(job(pp=2, num_microbatches=2), "pp")
    assert sent(plan, 0, "@2") == [3 * GROUPED.hidden_size * 8]
    assert sent(plan, 1, "@2") == [3 * 8]
    assert sent(plan, 0, "@0") == [14 * GROUPED.hidden_size * 8]
    assert not sent(plan, 1, "@3")  # the last tokens go nowhere


def sent(plan: Plan, stage: int, part: str) -> list[int]:
    """Return the bytes of the messages of a pass from a stage."""
    program = plan.programs[stage]
    ops = (op for task in program.tasks.values() if task.name.endswith(part) for op in task.ops)
    return [program.buffers[op.reads[0]].num_bytes for op in ops if isinstance(op, Send)]


def test_decoding_attention_reads_the_caches() -> None:
    """In step i every sequence of p prompt tokens has p + i keys, and the FLOP of attention are 4 n d of their sum."""
    program = build_inference(job(), "keys").programs[0]
    for index in (1, 2, 3):
        op = next(op for op in program.tasks[f"decode.0@{index}"].ops if op.name == "layer1.attention")
        assert isinstance(op, Compute)
        assert op.kernel == "decode_attention"
        assert [keys for _, keys, _ in op.attributes["spans"]] == [tokens + index for tokens in (5, 8, 1)]
        assert KERNELS[op.kernel].family == "decode"


def experts(**changes: Any) -> dict[str, Any]:
    """Return a model with other experts."""
    assert EXPERTS.experts is not None
    return {"model": replace(EXPERTS, experts=replace(EXPERTS.experts, **changes))}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model": replace(GPT, causal=False)}, "model.causal"),
        ({"model": replace(GROUPED, sliding_window=SlidingWindow(size=8))}, "model.sliding_window"),
        (experts(gate="expert_choice"), "model.experts.gate"),
        (experts(dispatch="exact", routing="balanced", capacity_factor=1.0), "model.experts"),
        ({"prompt_tokens": (14,)}, "inference.prompt_tokens"),
        ({"output_tokens": 4, "tokens_per_step": 2}, "inference.output_tokens"),
        ({"model": replace(GROUPED, sequence_length=20_000), "output_tokens": 10_002}, "inference.output_tokens"),
        ({"tp": 4}, "parallel.tensor.degree"),
        ({"pp": 3}, "parallel.pipeline.degree"),
        ({"ep": 2}, "parallel.expert.degree"),
    ],
)  # fmt: skip
def test_what_is_not_built_is_refused_with_its_key(changes: dict[str, Any], key: str) -> None:
    """Models, lengths and degrees that have no plan name the key that is to change."""
    with pytest.raises(SpecError) as found:
        job(**changes)
    assert found.value.key == key


@pytest.mark.parametrize(
    "parallel",
    [
        ParallelSpec(tensor=OneDimensional(degree=2, sequence_parallel=True)),
        ParallelSpec(sequence=sequence_method("ulysses", 2, {})),
        ParallelSpec(pipeline=PipelineSpec(degree=1, virtual_stages=2, schedule="interleaved_1f1b")),
        ParallelSpec(data_degree=2, zero_stage=1),
    ],
    ids=["sequence parallel", "context", "virtual stages", "zero"],
)
def test_techniques_of_training_are_refused(parallel: ParallelSpec) -> None:
    """Inference has tensor, pipeline, expert and data parallelism, and none of the other techniques."""
    with pytest.raises(SpecError, match="inference is built for"):
        InferenceJob(model=GROUPED, parallel=parallel, prompt_tokens=(4,), output_tokens=2)


def test_a_model_of_training_is_run_without_dropout() -> None:
    """A model that is trained with dropout and separate kernels infers without the one, and with fused attention."""
    trained = replace(GPT, dropout=0.1, attention="core")
    plan = build_inference(job(inference_model(trained)), "gpt")
    check(plan)
    kernels = {op.kernel for op in plan.programs[0].tasks["decode.0@1"].ops if isinstance(op, Compute)}
    assert "dropout" not in kernels
    assert "attention_scores" not in kernels
