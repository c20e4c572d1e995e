"""Random small scenarios over all that a scenario file can say, each made by its seed alone.

A draw is a mapping as a file holds it. The loader decides what is valid: what it refuses is drawn again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from scenarios.errors import ScenarioError
from scenarios.workloads.loading import scenario_from_mapping
from scenarios.workloads.steps.scenario import StepScenario
from sim.training.pipeline.actions import format_orders
from sim.training.pipeline.schedules import SCHEDULES
from tests.sim.topology_strategies import LAYOUTS

Data = dict[str, Any]

_MOST_DRAWS: Final = 400
_MOST_RANKS: Final = 16
_NODES: Final = {
    "dgx-1-v100-16g": 8, "longhorn": 4, "dgx-2": 16, "dgx-a100-80g": 8, "hgx-h100": 8, "hgx-h200": 8, "dgx-b200": 8,
    "cloud-a100-100g": 8, "aws-p3-16xlarge": 8,
}  # fmt: skip
"""Nodes of the catalogue with their number of devices."""
_LAYOUT_NAMES: Final = ("dgx-1-v100", "dgx-2", "dgx-a100", "hgx-h100", "pcie-8-gpu-server", *LAYOUTS)
_EVEN_LINK: Final = {"bandwidth": "5 GB/s", "latency": "0.4 us"}
_SCHEDULES: Final = (
    "1f1b", "gpipe", "interleaved_1f1b", "1f1b", "breadth_first", "aiao", "1f1b", "zb_h1", "zb_h2", "1f1b", "zb_v",
    "zb_auto", "1f1b", "chimera", "dualpipe", "1f1b", "dualpipe_v", "terapipe", "interleaved_1f1b", "seq_1f1b",
    "custom", "1f1b", "local", "pipedream_2bw",
)  # fmt: skip
"""Each seed's schedule is the next one, so that a few dozen seeds try all of them."""
_VIRTUAL_STAGES: Final[Mapping[str, Sequence[int]]] = {
    "interleaved_1f1b": (2, 3), "breadth_first": (1, 2, 2), "aiao": (1, 2, 2), "zb_h1": (1, 1, 2), "zb_v": (2,),
    "dualpipe_v": (2,), "local": (1, 2),
}  # fmt: skip


class Draw(Random):
    """Random choices in the words of a scenario. ``number``: the seed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def one(self, *values: Any) -> Any:
        """Return one of some values."""
        return self.choice(values)

    def maybe(self, probability: float) -> bool:
        """Return true with a probability."""
        return self.random() < probability

    def some(self, probability: float, **keys: Any) -> Data:
        """Return each key, independently, with a probability."""
        return {key: value for key, value in keys.items() if self.maybe(probability)}


def random_scenario(seed: int, folder: Path) -> tuple[Data, StepScenario]:
    """Return the scenario of a seed: as a file would hold it, and as it is read, with what it leaves open decided.

    ``folder``: where the actions of a custom schedule are written.
    """
    draw = Draw(seed)
    for _ in range(_MOST_DRAWS):
        data = _agreed(_scenario(draw, folder / f"actions-{seed}.csv"))
        try:
            return data, load(data, folder).decided()
        except ScenarioError:
            continue
    raise AssertionError(f"seed {seed}: none of {_MOST_DRAWS} draws is valid")


def load(data: Mapping[str, Any], folder: Path) -> StepScenario:
    """Return the scenario of a mapping. Raises ScenarioError where it is none."""
    return scenario_from_mapping(data, folder / "random.yaml", "a random scenario")


def with_keys(data: Mapping[str, Any], **keys: Any) -> Data:
    """Return a scenario with other values at dotted keys, written with two underscores for a dot.

    A key that becomes None is left out.
    """
    changed = _copied(data)
    for key, value in keys.items():
        *sections, last = key.split("__")
        section = changed
        for name in sections:
            section = section.setdefault(name, {})
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
    return changed


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


# --- what goes together ------------------------------------------------------------------------------------------

_PASSES: Final = ("set_gradients_to_none", "prescale_gradients", "check_gradients")


def _agreed(data: Data) -> Data:
    """Return a scenario without what its schedule and its sharding have no place for.

    Without this most draws of the narrower techniques would be refused, and few of them would be tried.
    """
    model, training, parallel = data["model"], data["training"], data["parallel"]
    sharing, pipeline = parallel["data"], parallel["pipeline"]
    schedule, stage = pipeline["schedule"], sharing.get("zero_stage", 0)
    if schedule in {"local", "pipedream_2bw"} or "offload" in sharing:
        model["tied_embeddings"] = False
    if schedule in {"local", "terapipe", "seq_1f1b"} or "osdp" in sharing:
        model.pop("experts", None)
        parallel.pop("expert", None)
    if "local_degree" in sharing:
        parallel.pop("expert", None)
    if schedule == "aiao" or stage > 1 or "osdp" in sharing or sharing.get("overlap_gradient_sync"):
        for key in _PASSES[1:] if stage < 2 and "osdp" not in sharing else _PASSES:
            training.pop(key, None)
    if "osdp" in sharing:
        model.pop("latent_attention", None)
    if training["precision"] == "fp8" and "osdp" in sharing:
        training["precision"] = "bf16"
    return data


# --- the parts ---------------------------------------------------------------------------------------------------


def _scenario(draw: Draw, actions: Path) -> Data:
    tp, cp, dp = draw.one(1, 1, 2, 2, 4), draw.one(1, 1, 1, 2, 2, 4), draw.one(1, 1, 2, 2, 3, 4)
    pipeline = _pipeline(draw, actions)
    pp, schedule = pipeline["degree"], pipeline["schedule"]
    sharing = _data(draw, dp, schedule)
    if schedule in {"local", "terapipe", "seq_1f1b"} or "osdp" in sharing:
        cp = 1
    m, size = pipeline.pop("m"), draw.one(1, 1, 2)
    stages = pp * pipeline.get("virtual_stages", 1)
    shared = _context(draw, cp)
    model = _model(draw, stages, tp, shared)
    cluster = _cluster(draw, min(tp * cp * pp * dp, _MOST_RANKS + 1))
    training = _training(draw, m * size * dp, size, _precisions(cluster))
    if schedule == "local":
        training |= {"method": "local"} | draw.some(0.5, local_update="overlapping")
    if draw.maybe(0.2):
        pipeline["recompute_per_stage"] = [draw.one("none", "selective", "full") for _ in range(stages)]
    parallel = {
        "tensor": _tensor(draw, tp),
        "context": shared,
        "pipeline": pipeline,
        "data": sharing,
        "axis_order": draw.sample(["pp", "dp", "cp", "tp"], 4),
    }
    if "experts" in model:
        parallel["expert"] = {"degree": draw.one(1, 2, dp)}
    return {
        "name": "random", "seed": draw.randrange(1000), "cluster": cluster,
        "model": model, "training": training, "parallel": parallel, "software": _software(draw),
        **({"network": {"algorithm": _algorithms(draw)}} if draw.maybe(0.15) else {}),
    }  # fmt: skip


def _context(draw: Draw, degree: int) -> Data:
    """Return how ranks share sequences."""
    method = draw.one("p2p", "all_gather", "ulysses", "ring_self_attention", *(["two_level"] if degree > 2 else []))
    has_layout = method in {"p2p", "all_gather", "two_level"} and draw.maybe(0.3)
    return {"degree": degree, "method": method} | ({"layout": "contiguous"} if has_layout else {})


def _model(draw: Draw, stages: int, tp: int, shared: Data) -> Data:
    heads, cp = draw.one(4, 8), int(shared["degree"])
    kinds = {"ulysses": ("core", "flash"), "ring_self_attention": ("core",)}.get(shared["method"], ("flash",))
    attention = draw.one(*kinds) if cp > 1 else draw.one("core", "flash")
    model = {
        "family": draw.one("gpt", "llama"), "num_layers": max(1, stages + draw.one(-2, 0, 0, 1)),
        "hidden_size": draw.one(64, 128, 512), "num_heads": heads, "vocab_size": 4 * draw.one(16, 64, 512),
        "sequence_length": 2 * cp * tp * draw.one(4, 16, 64), "tied_embeddings": draw.maybe(0.4),
        "attention": attention,
    } | draw.some(0.15, causal=False)  # fmt: skip
    if model["family"] == "gpt":
        model |= {"dropout": draw.one(0.0, 0.1)} | draw.some(0.3, ffn_hidden_size=96)
    else:
        model |= {"ffn_hidden_size": 32 * draw.one(2, 5)} | draw.some(0.4, num_kv_heads=draw.one(tp, 4))
        if draw.maybe(0.3):
            model["latent_attention"] = {
                "kv_rank": 32, "head_size": 16, "rotary_head_size": 8, "value_head_size": 16
            } | draw.some(0.5, q_rank=48)  # fmt: skip
        if draw.maybe(0.3):
            model |= _variations(draw, int(model["sequence_length"]))
    if draw.maybe(0.5):
        model["experts"] = {
            "num_experts": draw.one(2, 4, 8), "top_k": draw.one(1, 2), "ffn_hidden_size": 64,
            "capacity_factor": draw.one(0.5, 1.0, 1.25, 2.0, 4.0), "routing": draw.one("learned", "balanced"),
        } | draw.some(0.3, shared_ffn_hidden_size=64, first_dense_layers=1, balance_loss=0.01)  # fmt: skip
        if draw.maybe(0.2):
            model["experts"] |= {"dispatch": "exact", "routing": {"skew": {}}}
            del model["experts"]["capacity_factor"]
    return model


def _variations(draw: Draw, sequence: int) -> Data:
    """Return what newer models change in a Llama."""
    window = {"size": draw.one(1, sequence // 2, sequence)} | draw.some(0.5, global_every=2, rotary_base=500.0)
    return draw.some(
        0.5, head_size=24, qkv_bias=True, query_key_norm=True, gate="gelu", post_norms=True, scaled_embeddings=True,
        sliding_window=window, logit_cap=30.0,
    )  # fmt: skip


def _training(draw: Draw, batch: int, size: int, precisions: Sequence[str]) -> Data:
    training = {
        "global_batch_size": batch, "microbatch_size": size,
        "precision": draw.one(*precisions),
        "recompute": draw.one("none", "none", "selective", "full"), "optimizer": draw.one("adam", "adam", "sgd"),
    } | draw.some(
        0.15, fused_gradient_accumulation=False, gradient_placeholders=True, low_precision_gradients=True,
        whole_embedding_gradient=True, prescale_gradients=True, check_gradients=True,
    )  # fmt: skip
    if training["recompute"] != "none":
        training |= draw.some(0.25, checkpoint_early_stop=True)
    if training["recompute"] == "full" and draw.maybe(0.4):
        training |= {"recompute_num_layers": draw.one(1, 1, 2), "recompute_method": draw.one("block", "uniform")}
    if draw.maybe(0.15):
        training |= {"set_gradients_to_none": True, "low_precision_gradients": True}
    return training


def _tensor(draw: Draw, tp: int) -> Data:
    sequence = tp > 1 and draw.maybe(0.5)
    return {"degree": tp, "sequence_parallel": sequence, "overlap_backward": draw.maybe(0.8),
            "collective_matmul": sequence and draw.maybe(0.4)}  # fmt: skip


def _pipeline(draw: Draw, actions: Path) -> Data:
    """Return a pipeline's section, and under ``m`` its micro-batches."""
    schedule = _SCHEDULES[draw.number % len(_SCHEDULES)]
    pp = draw.one(1, 1, 1, 2) if schedule in {"1f1b", "gpipe", "breadth_first"} else draw.one(2, 2, 4)
    v = draw.one(*_VIRTUAL_STAGES.get(schedule, (1,)))
    m = pp * draw.one(1, 2) + (0 if schedule in {"interleaved_1f1b", "chimera"} else draw.one(0, 0, 1))
    if schedule in {"zb_h2", "dualpipe", "dualpipe_v"}:
        m = 2 * pp + 2 * draw.one(0, 1)
    pipeline: Data = {"degree": pp, "schedule": schedule, "virtual_stages": v, "m": m}
    if schedule in {"terapipe", "seq_1f1b"}:
        pipeline["token_slices"] = draw.one(2, 4)
    if schedule == "custom":
        like, v = draw.one(("zb_h1", 1), ("breadth_first", 2), ("interleaved_1f1b", 2), ("zb_v", 2))
        m = pp * 2
        actions.write_text(format_orders(SCHEDULES[like](pp, m, v)), encoding="utf-8")
        pipeline |= {"actions": actions.name, "m": m, "virtual_stages": v}
    return pipeline | draw.some(
        0.1, scatter_gather=True, optimizer_barrier=False, blocking_messages=schedule in {"gpipe", "terapipe"}
    )


_WHOLE_BACKWARDS: Final = {"gpipe", "1f1b", "interleaved_1f1b", "breadth_first"}


def _data(draw: Draw, dp: int, schedule: str) -> Data:
    stage = draw.one(0, 0, 1, 1, 2, 2, 3, 3) if schedule in _WHOLE_BACKWARDS else draw.one(0, 0, 1)
    if schedule == "pipedream_2bw":
        stage = 0
    data: Data = {"degree": dp, "zero_stage": stage, "overlap_gradient_sync": draw.maybe(0.75)}
    if schedule == "aiao":
        data["overlap_gradient_sync"] = True
        return data | (draw.some(0.5, deferred_sync=draw.one(0.0, 0.5, 1.0)) if stage == 0 else {})
    if dp > 1 and schedule in _WHOLE_BACKWARDS and draw.maybe(0.12):
        return {"degree": dp, "osdp": {"memory_limit": draw.one("2 MB", "8 MB", "1 GB"), "splits": [1, 2]}}
    if stage > 1:
        data["overlap_gradient_sync"] = True
        data |= draw.some(0.3, gradient_sync=draw.one("last_microbatch", "each_microbatch"))
        data |= draw.some(0.25, shard_degree=2) if dp == 4 else {}
    elif stage == 1:
        data |= draw.some(0.2, overlap_parameter_gather=True)
    if stage == 3:
        data |= draw.some(0.3, prefetch=draw.one(0, 2), reshard_after_forward=False)
        return data | (draw.some(0.3, local_degree=2) if dp == 4 and "shard_degree" not in data else {})
    if stage == 2 and "shard_degree" not in data:
        data |= draw.some(0.25, offload="optimizer")
        data |= draw.some(0.5, delayed_update=True) if "offload" in data else {}
    return data | draw.some(0.3, bucket=draw.one("20 KB", "200 KB"))


def _software(draw: Draw) -> Data:
    if draw.maybe(0.6):
        return {}
    return draw.some(
        0.3, launch="5 us", task_launch="50 us", graph_launch="20 us", rank_skew="3 us", product_slowdown=1.1,
        unaligned_slowdown=1.5, memory_bound_slowdown=1.3, optimizer_slowdown=1.2, fused_softmax=False,
        fused_routing=False, fused_permutation=False,
    )  # fmt: skip


def _algorithms(draw: Draw) -> Data:
    return draw.some(
        0.4, all_reduce=draw.one("ring", "tree", "direct", "hierarchical"),
        all_gather=draw.one("ring", "direct", "hierarchical"), reduce_scatter=draw.one("ring", "direct"),
        all_to_all=draw.one("direct", "pairwise", "bruck", "hierarchical"),
    )  # fmt: skip


def _precisions(cluster: Data) -> Sequence[str]:
    """Return types of numbers, as often as they are to be drawn, that the devices have a rate for."""
    devices = str(cluster.get("node", cluster.get("topology")))
    if any(name in devices for name in ("v100", "p3", "longhorn", "dgx-2")):
        return ("fp16", "fp16", "fp32", "fp64")
    return ("bf16",) * 5 + ("fp16", "fp32", "fp64") + (() if "a100" in devices else ("fp8", "fp8"))


# --- the machine -------------------------------------------------------------------------------------------------


def _cluster(draw: Draw, world: int) -> Data:
    """Return a cluster with as many devices in use as there are ranks, if that is possible."""
    node = draw.one(*_NODES)
    jitter = {"jitter": {"gemm": 0.03, "elementwise": 0.03}} if draw.maybe(0.08) else {}
    if draw.maybe(0.65):
        per_node = draw.one(*[d for d in range(1, _NODES[node] + 1) if world % d == 0])
        cluster = {"node": node, "num_nodes": world // per_node, "devices_per_node": per_node}
    else:
        cluster = _wired(draw, world)
    return cluster | jitter | ({"stragglers": _stragglers(draw, world)} if draw.maybe(0.2) else {})


def _wired(draw: Draw, world: int) -> Data:
    name = draw.one(*_LAYOUT_NAMES)
    layout, devices = LAYOUTS.get(name, (name, 16 if name == "dgx-2" else 8))
    per_node = draw.one(*[d for d in range(1, devices + 1) if world % d == 0])
    num_nodes = world // per_node
    kind = draw.one("switch", "leaf-spine", "rail-optimised", "torus")
    fabric: Data = {"kind": kind}
    if kind == "leaf-spine":
        fabric |= {"leaf_ports": draw.one(2, 4), "spines": draw.one(1, 2), "oversubscription": draw.one(1, 2)}
    elif kind == "rail-optimised":
        fabric |= {"nodes_per_leaf": draw.one(1, 2, 4), "spines": 1}
    elif kind == "torus":
        first = draw.one(*[d for d in range(1, num_nodes + 1) if num_nodes % d == 0])
        fabric |= {"shape": [first, num_nodes // first], "link": _EVEN_LINK}
    if kind == "switch" and draw.maybe(0.2):
        fabric["in_network_reduction"] = True
    hardware = {} if name in _NODES else {"node": draw.one("hgx-h100", "dgx-a100-80g", "dgx-1-v100-16g")}
    return {"num_nodes": num_nodes, "devices_per_node": per_node, **hardware,
            "topology": {"nodes": layout, "fabric": fabric}}  # fmt: skip


def _stragglers(draw: Draw, world: int) -> list[Data]:
    slow: list[Data] = [{"device": draw.randrange(world), "slowdown": draw.one(1.3, 2.0)}]
    return slow + ([{"link": "node 0 nic 0 out", "slowdown": draw.one(1.5, 4.0)}] if draw.maybe(0.4) else [])
