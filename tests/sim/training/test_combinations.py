"""What goes with what: every pair of techniques is built and checked, or refused with the table's reason."""

import re
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from sim.memory.spec import MemorySpec
from sim.plan.checking.check import check
from sim.training.errors import SpecError
from sim.training.local.builder import build_local_training
from sim.training.spec.combinations import REFUSALS, first_refusal, verdict_on
from sim.training.spec.job import DenseTraining
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.latent import LatentAttention
from sim.training.spec.models.window import SlidingWindow
from sim.training.spec.parallelism.sharding import Choice, OsdpSpec, ShardingSpec
from sim.training.spec.techniques import TECHNIQUES, Strategy, used_by
from sim.training.steps.builder import build_dense_training
from sim.training.steps.delayed import build_delayed_training
from tests.sim.jobs import LLAMA, dense_job

EXAMPLES: dict[str, dict[str, Any]] = {
    "sequence_parallel": {"sequence_parallel": True},
    "collective_matmul": {"collective_matmul": True},
    "tensor_2d": {"tensor_method": "2d", "tp": 4, "mesh": (2, 2), "b": 2},
    "tensor_2_5d": {"tensor_method": "2.5d", "tp": 8, "mesh": (2, 2, 2), "b": 4},
    "tensor_3d": {"tensor_method": "3d", "tp": 8, "mesh": (2, 2, 2), "b": 4},
    "scatter_gather": {"scatter_gather": True},
    "p2p": {"context_degree": 2},
    "all_gather": {"context_degree": 2, "context_method": "all_gather"},
    "ulysses": {"context_degree": 2, "context_method": "ulysses"},
    "ring_self_attention": {"context_degree": 2, "context_method": "ring_self_attention"},
    "two_level": {"context_degree": 4, "context_method": "two_level"},
    "contiguous": {"context_layout": "contiguous"},
    "latent_attention": {
        "num_kv_heads": 8,
        "latent_attention": LatentAttention(kv_rank=16, head_size=8, rotary_head_size=4, value_head_size=8),
    },
    "core_attention": {"attention": "core"},
    "sliding_window": {"sliding_window": SlidingWindow(size=8, global_every=2)},
    "full_mask": {"causal": False},
    "score_cap": {"attention": "core", "score_cap": 50.0},
    "tied_embeddings": {"tied_embeddings": True},
    "tied_over_ranks": {},
    "experts": {"experts": ExpertsSpec(num_experts=4, top_k=2, ffn_hidden_size=32)},
    "expert_parallel": {"expert_degree": 2},
    "pipeline": {"pp": 2},
    "split_backward": {"schedule": "zb_h1"},
    "two_copies": {"schedule": "chimera"},
    "sliced": {"schedule": "seq_1f1b", "token_slices": (32,)},
    "token_slices": {"token_slices": (16, 16)},
    "aiao": {"schedule": "aiao", "virtual_stages": 2},
    "delayed": {"schedule": "pipedream_2bw"},
    "local": {"schedule": "local", "method": "local"},
    "zero_1": {"zero_stage": 1},
    "zero_2": {"zero_stage": 2},
    "zero_3": {"zero_stage": 3},
    "osdp": {"osdp": OsdpSpec(choices=(("layer0.qkv", Choice(1, 1)),))},
    "offload": {"offload": "optimizer"},
    "delayed_update": {"delayed_update": True},
    "tiered": {"memory": MemorySpec(manager="angel_ptm")},
    "shard_degree": {"shard_degree": 4},
    "local_degree": {"local_degree": 2},
    "reshard_after_forward": {"reshard_after_forward": False},
    "sync_once": {"gradient_sync": "last_microbatch"},
    "parameter_gather": {"overlap_parameter_gather": True},
    "deferred_sync": {"deferred_sync": 0.0},
    "bucket": {"bucket_bytes": 20_000},
    "blocking_sync": {"overlap_gradient_sync": False},
    "overlapped_sync": {"overlap_gradient_sync": True},
    "fp8": {"precision": "fp8"},
    "recomputed_layers": {"recompute": "full", "recompute_num_layers": 1},
    "set_gradients_to_none": {"set_gradients_to_none": True, "low_precision_gradients": True},
    "prescale_gradients": {"prescale_gradients": True},
    "check_gradients": {"check_gradients": True},
}
"""Keys that use each technique."""

VARIATIONS = ("causal", "latent_attention", "experts", "sliding_window", "score_cap")

PAIRS = list(combinations(TECHNIQUES, 2))
BUILT, REFUSED, NEVER = (
    [pair for pair in PAIRS if kind == (not (v := verdict_on(*pair)).used, v.refusal is not None)]
    for kind in ((False, False), (False, True), (True, False))
)


def job_of(used: Iterable[str], **more: Any) -> DenseTraining:
    """Return a small job that uses some techniques; ``more``: other keys."""
    keys: dict[str, Any] = {"tp": 2, "dp": 8, "m": 4}
    for name in sorted(used):
        keys |= EXAMPLES[name]
    if "sliced" in used and "token_slices" in used:
        keys |= EXAMPLES["token_slices"]
    keys |= more
    if keys.get("schedule") == "aiao" and "zero_stage" not in keys:
        keys.setdefault("deferred_sync", 0.0)
    sharding = {key: keys.pop(key) for key in ShardingSpec.__struct_fields__ if key in keys}
    model = LLAMA | {key: keys.pop(key) for key in (*LLAMA, *VARIATIONS) if key in keys}
    return dense_job(model=model, sharding=ShardingSpec(**sharding), **keys)


@cache
def build(job: DenseTraining) -> None:
    """Build and check the plan of a job, once: some pairs bring what they need, and make the same job."""
    make = build_delayed_training if job.parallel.pipeline.gradient_delay else build_dense_training
    check((build_local_training if job.training.method == "local" else make)(job, "pair"))


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_is_seen_where_it_is_used(name: str) -> None:
    """The example of a technique is seen to use it and what it needs, and nothing else but the defaults."""
    wanted = verdict_on(name, name).used
    job = job_of(wanted)
    used = used_by(Strategy(job.model, job.training, job.parallel))
    defaults = {"overlapped_sync", "deferred_sync"} | ({"tied_over_ranks"} if "tied_embeddings" in wanted else set())
    assert wanted <= used <= wanted | defaults


@pytest.mark.parametrize("one", TECHNIQUES)
def test_pairs_that_are_built_build(one: str) -> None:
    """Every pair that the table does not refuse makes a plan that passes all checks, in a pipeline where it can."""
    for pair in (pair for pair in BUILT if pair[0] == one):
        used = verdict_on(*pair).used
        in_pipeline = used | {"pipeline"} | ({"tied_over_ranks"} if "tied_embeddings" in used else set())
        build(job_of(in_pipeline if first_refusal(in_pipeline) is None else used))


@pytest.mark.parametrize("one", TECHNIQUES)
def test_pairs_that_are_not_built_are_refused_with_the_tables_reason(one: str) -> None:
    """The error of a pair names the key, the rule and the remedy of the table."""
    for pair in (pair for pair in REFUSED if pair[0] == one):
        verdict = verdict_on(*pair)
        with pytest.raises(SpecError) as caught:
            job_of(verdict.used)
        reasons = [r for r in REFUSALS if r.refuses(verdict.used) and r.key == caught.value.key]
        assert any(said(r.rule, caught.value.rule) and said(r.remedy, caught.value.remedy) for r in reasons), pair


def said(template: str, text: str) -> bool:
    """Return whether a text is a template with some facts put in."""
    pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(template.replace("{{", "<").replace("}}", ">")))
    return re.fullmatch(pattern, text.replace("{", "<").replace("}", ">")) is not None


def test_every_reason_is_met() -> None:
    """No row of the table is dead: each is the verdict on some pair, or one of several on it."""
    met = {r for pair in REFUSED for r in REFUSALS if r.refuses(verdict_on(*pair).used)}
    assert [r for r in REFUSALS if r not in met and not met_by_default(r)] == []


def met_by_default(refusal: Any) -> bool:
    """Return whether a row concerns the default way to synchronise, which what it refuses needs otherwise."""
    return refusal.others == ("overlapped_sync",)


def test_passes_over_gradients_name_the_synchronisation_that_they_do_not_go_with() -> None:
    """A pass and the default synchronisation, under backward, is refused for that."""
    for key in ("prescale_gradients", "check_gradients"):
        with pytest.raises(SpecError, match=r"not for overlap_gradient_sync; .*overlap_gradient_sync: false"):
            dense_job(dp=2, **{key: True})


def test_two_values_of_one_key_have_no_verdict() -> None:
    """Pairs that never meet are those of one key, or of options of two values of one key."""
    assert ("zero_1", "zero_2") in NEVER
    assert ("zero_1", "offload") in NEVER
    assert ("fp8", "check_gradients") not in NEVER
