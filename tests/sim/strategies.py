"""Random jobs that the property tests draw from."""

from typing import Any

from hypothesis import strategies as st

from sim.plan.words.program import Plan
from sim.training.local.builder import build_local_training
from sim.training.sequence.registry import SEQUENCE_METHODS
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.parallelism.sharding import GRADIENT_SCHEDULES, Choice, OsdpSpec, ShardingSpec
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan

NODES = ("dgx-a100-80g", "cloud-a100-100g")
"""One adapter per device, and one adapter per node."""

HAVE_LAYOUTS = frozenset({"p2p", "all_gather", "two_level"})
"""Methods that share sequences in zigzag or in contiguous blocks."""
AXIS_ORDERS = (("pp", "dp", "tp"), ("dp", "pp", "tp"), ("pp", "tp", "dp"), ("tp", "dp", "pp"))
WIDE = {"hidden_size": 1024, "sequence_length": 512, "vocab_size": 4096, "ffn_hidden_size": 4096}

_PIPELINED = ("interleaved_1f1b", "breadth_first", "zb_h1", "zb_v", "dualpipe_v")
"""Schedules that need more than one rank."""


_SEVERAL_STAGES = ("interleaved_1f1b", "breadth_first", "zb_v", "dualpipe_v")
"""Schedules of two or more stages on a rank."""


def _num_microbatches(draw: Any, schedule: str, pp: int) -> int:
    """Draw a number of micro-batches that a schedule takes."""
    if schedule in {"gpipe", "1f1b"}:
        return int(draw(st.integers(1, 4)))
    if schedule in {"zb_h2", "zb_v", "dualpipe_v"}:
        return int(draw(st.integers(2 * pp, 2 * pp + 1)))
    return int(pp * draw(st.integers(1, 2)))


def _sharding(draw: Any, schedule: str, dp: int, most_stage: int) -> dict[str, Any]:
    """Draw what replicas shard, and when."""
    most = 1 if schedule not in GRADIENT_SCHEDULES else 3
    stage = draw(st.integers(0, min(most, most_stage)))
    if stage == most_stage == 3 and draw(st.booleans()):
        return _operators(draw)
    keys: dict[str, Any] = {
        "zero_stage": stage,
        "overlap_gradient_sync": stage > 1 or draw(st.booleans()),
        "bucket_bytes": 0 if stage == 3 else draw(st.sampled_from([0, 20_000])),
    }
    if stage > 1:
        shard_degree = draw(st.sampled_from([None, *(g for g in (2, 3, 4) if dp % g == 0)]))
        local = 2 if (shard_degree or dp) == 4 and draw(st.booleans()) else None
        ahead = {
            "prefetch": draw(st.integers(0, 3)), "reshard_after_forward": draw(st.booleans()), "local_degree": local,
        }  # fmt: skip
        keys["sharding"] = ShardingSpec(
            shard_degree=shard_degree,
            gradient_sync=draw(st.sampled_from(["each_microbatch", "last_microbatch"])),
            **(ahead if stage == 3 else {}),
        )
    return keys


def _operators(draw: Any) -> dict[str, Any]:
    """Draw which operators of the first layers are sharded, whole or in two slices."""
    names = [f"layer{i}.{name}" for i in (0, 1) for name in ("qkv", "projection", "fc1", "fc2")]
    slices = st.sampled_from([(1, 0), (1, 1), (2, 1), (2, 2)])
    choices = {name: Choice(*draw(slices)) for name in names} | {"embedding.word": Choice(1, draw(st.integers(0, 1)))}
    sync = draw(st.sampled_from(["each_microbatch", "last_microbatch"]))
    sharding = ShardingSpec(prefetch=draw(st.integers(0, 2)), gradient_sync=sync)
    return {"osdp": OsdpSpec(choices=tuple(choices.items())), "sharding": sharding}


@st.composite
def dense_keys(draw: Any, most_ranks: int = 8, most_stage: int = 3) -> dict[str, Any]:
    """Draw the keys of a dense job: any techniques together, up to a ZeRO stage, on at most ``most_ranks`` ranks."""
    tp, pp, dp = draw(
        st.sampled_from([
            (t, p, d) for t in (1, 2, 4) for p in (1, 2, 3) for d in (1, 2, 3, 4) if t * p * d <= most_ranks
        ])
    )  # fmt: skip
    schedule = draw(st.sampled_from(["gpipe", "1f1b", *(_PIPELINED if pp > 1 else ())]))
    v = 1 if schedule in {"gpipe", "1f1b", "zb_h1"} else 2
    model = draw(st.sampled_from([GPT, LLAMA])) | {"tied_embeddings": draw(st.booleans()), "num_layers": pp * v + 1}
    sequence_parallel, data = tp > 1 and draw(st.booleans()), _sharding(draw, schedule, dp, most_stage)
    return {
        "tp": tp, "pp": pp, "dp": dp, "schedule": schedule, "virtual_stages": v,
        "m": _num_microbatches(draw, schedule, pp),
        "b": draw(st.integers(1, 2)),
        "model": model | (WIDE if draw(st.booleans()) else {}),
        "sequence_parallel": sequence_parallel,
        "collective_matmul": sequence_parallel and "osdp" not in data and draw(st.booleans()),
        "scatter_gather": draw(st.booleans()),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "precision": draw(st.sampled_from(["bf16", "fp32"])),
        **data,
        "axis_order": draw(st.sampled_from(AXIS_ORDERS)),
    }  # fmt: skip


@st.composite
def aiao_keys(draw: Any) -> dict[str, Any]:
    """Draw the keys of a small all-in-all-out job, whose steps overlap: a part deferred, or parameters gathered."""
    tp, pp, v = draw(st.sampled_from([1, 2])), draw(st.integers(2, 3)), draw(st.integers(2, 3))
    stage = draw(st.integers(0, 1))
    return {
        "tp": tp, "pp": pp, "dp": draw(st.integers(1, 3)), "schedule": "aiao", "virtual_stages": v,
        "m": draw(st.integers(pp, 2 * pp + 1)),
        "model": draw(st.sampled_from([GPT, LLAMA])) | {"num_layers": pp * v} | (WIDE if draw(st.booleans()) else {}),
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "scatter_gather": draw(st.booleans()),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "zero_stage": stage,
        "overlap_gradient_sync": True,
        "deferred_sync": None if stage else draw(st.sampled_from([0.0, 0.3, 1.0])),
        "axis_order": draw(st.sampled_from(AXIS_ORDERS)),
    }  # fmt: skip


@st.composite
def context_keys(
    draw: Any,
    methods: tuple[str, ...] = tuple(SEQUENCE_METHODS),
    most_stages: int = 2,
    *,
    layouts: tuple[str, ...] = ("zigzag", "contiguous"),
    may_have_experts: bool = False,
) -> dict[str, Any]:
    """Draw the keys of a small job whose sequences ranks share, with other ways to share work beside it."""
    method, tp, pp = draw(st.sampled_from(methods)), draw(st.sampled_from([1, 2])), draw(st.integers(1, most_stages))
    base = draw(st.sampled_from([GPT | {"attention": "flash", "dropout": 0.0}, LLAMA]))
    if method == "ring_self_attention":
        base = base | {"attention": "core"}
    of_heads = {"ulysses": [2] if base is LLAMA else [2, 4], "two_level": [4]}
    degree = draw(st.sampled_from(of_heads.get(method, [2, 3, 4])))
    layout = {"context_layout": draw(st.sampled_from(layouts))} if method in HAVE_LAYOUTS else {}
    length = 2 * degree * tp * draw(st.integers(1, 3))
    schedules = ["gpipe", "1f1b", *(["zb_h1"] if pp > 1 else [])]
    order, dp = draw(st.permutations(["pp", "dp", "cp", "tp"])), draw(st.sampled_from([1, 2]))
    has_experts = may_have_experts and draw(st.booleans())
    if has_experts:
        base = base | {"experts": ExpertsSpec(num_experts=4, top_k=2, ffn_hidden_size=16)}
    return {
        "model": base | {"num_layers": draw(st.integers(pp, 3)), "sequence_length": length},
        "context_degree": degree, "context_method": method, **layout, "axis_order": tuple(order),
        "tp": tp, "sequence_parallel": tp > 1, "pp": pp, "schedule": draw(st.sampled_from(schedules)),
        "dp": dp, "expert_degree": draw(st.sampled_from([1, dp])) if has_experts else 1,
        "m": pp * draw(st.integers(1, 2)), "b": draw(st.integers(1, 2)),
        "zero_stage": draw(st.sampled_from([0, 1])), "precision": "fp32",
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
    }  # fmt: skip


@st.composite
def bare_ended_plans(draw: Any) -> Plan:
    """Draw the plan of a small job whose first and last stage hold no layer: by backpropagation or local updates."""
    tp, pp, v = draw(st.sampled_from([(t, p, v) for t in (1, 2) for p in (2, 3, 4) for v in (1, 2) if p * v > 2]))
    model = draw(st.sampled_from([GPT, LLAMA])) | {"tied_embeddings": False, "num_layers": pp * v - 2}
    assigned = draw(st.booleans())
    keys = {
        "tp": tp, "pp": pp, "dp": draw(st.integers(1, 2)), "model": model, "virtual_stages": v,
        "zero_stage": draw(st.sampled_from([0, 1])), "overlap_gradient_sync": draw(st.booleans()),
        "sequence_parallel": tp > 1 and draw(st.booleans()), "scatter_gather": draw(st.booleans()),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "precision": draw(st.sampled_from(["bf16", "fp8"])), "set_gradients_to_none": assigned,
        "low_precision_gradients": assigned, "fused_gradient_accumulation": not assigned,
    }  # fmt: skip
    if draw(st.booleans()):
        update, m = draw(st.sampled_from(["greedy", "overlapping"])), draw(st.integers(1, 3))
        job = dense_job(schedule="local", method="local", local_update=update, m=m, **keys)
        return build_local_training(job, "test")
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "zb_h1", "zb_h2"] if v == 1 else _SEVERAL_STAGES))
    return dense_plan(schedule=schedule, m=_num_microbatches(draw, schedule, pp), **keys)


@st.composite
def expert_keys(draw: Any) -> dict[str, Any]:
    """Draw the keys of a small job whose layers have experts, with too few slots, enough or too many."""
    tp, pp, dp, ep = draw(
        st.sampled_from(
            [(1, 1, 1, 1), (2, 1, 2, 2), (1, 2, 2, 2), (2, 2, 2, 1), (1, 1, 4, 2), (4, 1, 1, 1), (2, 1, 4, 4)]
        )
    )
    schedule = draw(st.sampled_from(["gpipe", "1f1b", *(_PIPELINED if pp > 1 else ())]))
    v = 1 if schedule in {"gpipe", "1f1b", "zb_h1"} else 2
    num_experts = draw(st.sampled_from([4, 8, 12]))
    experts = ExpertsSpec(
        num_experts=num_experts, top_k=draw(st.integers(1, 4)), ffn_hidden_size=32,
        shared_ffn_hidden_size=draw(st.sampled_from([0, 16])), first_dense_layers=draw(st.integers(0, 1)),
        capacity_factor=draw(st.sampled_from([0.1, 0.25, 0.9, 1.0, 1.1, 1.7, 4.0, 12.0])),
        routing=draw(st.sampled_from(["learned", "balanced"])),
    )  # fmt: skip
    base = draw(st.sampled_from([GPT | {"dropout": 0.0, "tied_embeddings": False}, LLAMA]))
    return {
        "tp": tp, "pp": pp, "dp": dp, "expert_degree": ep, "schedule": schedule, "virtual_stages": v,
        "model": base | {"num_layers": pp * v + 1, "experts": experts},
        "m": _num_microbatches(draw, schedule, pp), "b": draw(st.integers(1, 3)),
        "sequence_parallel": tp > 1 and draw(st.booleans()), "zero_stage": draw(st.integers(0, 1)),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
    }  # fmt: skip


def dense_plans(most_ranks: int = 8, most_stage: int = 3) -> st.SearchStrategy[Plan]:
    """Draw the plans of such jobs."""
    return dense_keys(most_ranks, most_stage).map(lambda keys: dense_plan(**keys))
