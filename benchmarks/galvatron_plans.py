"""Plans that Galvatron's releases come with, beside those that a search finds; both simulated.

``python -m benchmarks.galvatron_plans`` prints a row per plan; ``--case NAME`` only some. Source of the plans: the
repository PKU-DAIR/Hetu-Galvatron, folders ``configs`` of its models: GPUs, memory, batch, micro-batches (chunks), and
the strategy of every layer. Assumed: DGX A100, of which the stated memory may be used; sequences of 2,048 tokens (1,024
for GPT 1.5B); bf16 with fp32 master parameters; flash attention. Both sides have one micro-batch size per search: the
search also chooses it.
"""

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml
from msgspec import Struct

from benchmarks.measuring import Row, markdown
from costmodels.units import format_bytes, format_time
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import search
from scenarios.sweep.workers import ThisProcess
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.running import plan_of, run_plan
from sim.engine.running.memory import memory_use

WITHIN: Final = 1.02


class ReleasedPlan(Struct, frozen=True):
    """A plan of a release: its model, cluster, memory of a GPU in GiB, batch, and what it chose for every layer.

    ``sharded``: layers under ZeRO 3. ``recomputed``: layers that are computed again. ``zero_stage``: of the others.
    """

    name: str
    model: dict[str, Any]
    num_nodes: int
    memory_gib: int
    global_batch_size: int
    num_microbatches: int
    sharded: int
    recomputed: int
    zero_stage: int = 0


def llama(**keys: int) -> dict[str, Any]:
    """Return a Llama of 7B, up to ``keys``."""
    return {"family": "llama", "num_layers": 32, "hidden_size": 4096, "num_heads": 32, "ffn_hidden_size": 11008,
            "vocab_size": 32000, "sequence_length": 2048, "attention": "flash"} | keys  # fmt: skip


def gpt(num_layers: int, hidden_size: int, num_heads: int, sequence_length: int = 2048) -> dict[str, Any]:
    """Return a GPT."""
    return {"family": "gpt", "num_layers": num_layers, "hidden_size": hidden_size, "num_heads": num_heads,
            "vocab_size": 50257, "sequence_length": sequence_length, "attention": "flash"}  # fmt: skip


PLANS: Final = (
    ReleasedPlan("llama2-7b, 8 GPUs", llama(), 1, 36, 16, 1, 32, 20),
    ReleasedPlan("llama 4096, 8 GPUs", llama(), 1, 36, 64, 8, 29, 29),
    ReleasedPlan("gpt-6.7b, 16 GPUs", gpt(32, 4096, 32), 2, 40, 48, 1, 32, 0),
    ReleasedPlan("gpt-2.7b, 16 GPUs", gpt(32, 2560, 32), 2, 40, 64, 1, 0, 0, 2),
    ReleasedPlan("gpt-1.5b, 16 GPUs", gpt(48, 1600, 25, 1024), 2, 40, 144, 1, 0, 0, 2),
    ReleasedPlan("llama-7b, 16 GPUs", llama(), 2, 40, 48, 1, 32, 3),
)


_DEVICE_GIB: Final = 79.25


def scenario_of(plan: ReleasedPlan) -> dict[str, Any]:
    """Return what is fixed for both sides."""
    return {
        "name": plan.name,
        "seed": 0,
        "cluster": {"node": "dgx-a100-80g", "num_nodes": plan.num_nodes},
        "model": plan.model,
        "training": {"global_batch_size": plan.global_batch_size, "precision": "bf16"},
        "software": {"memory_reserve": f"{_DEVICE_GIB - plan.memory_gib} GiB"},
    }


def released_keys(plan: ReleasedPlan) -> list[str]:
    """Return a plan as overrides: replicas alone, with the layers that are sharded or computed again."""
    world = 8 * plan.num_nodes
    keys = [
        "parallel.tensor.degree=1", "parallel.pipeline.degree=1", f"parallel.data.degree={world}",
        f"training.microbatch_size={plan.global_batch_size // (world * plan.num_microbatches)}",
        f"parallel.data.zero_stage={plan.zero_stage}",
    ]  # fmt: skip
    if plan.recomputed:
        keys += ["training.recompute=full", f"training.recompute_layers={list(range(plan.recomputed))}"]
    if plan.sharded:
        keys.append(f"parallel.data.osdp={{layers: {list(range(plan.sharded))}, ends: true}}")
    return keys


def compared(plan: ReleasedPlan, folder: Path, num_proofs: int) -> Row:
    """Return the released plan and the found one, with their simulated seconds per step and memory."""
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario_of(plan)), encoding="utf-8")
    scenario = load_step(path, released_keys(plan))
    released = plan_of(scenario)
    time_s = run_plan(scenario, released).iteration_time_s
    peak = max(memory_use(program).peak_bytes for program in released.programs)
    stated = f"{plan.sharded} sharded, {plan.recomputed} recomputed: {format_time(time_s)}, {format_bytes(peak)}"
    request = Request(planner="galvatron_bmw", num_proofs=num_proofs)
    best = search(path, [], request, Resources(ThisProcess())).summary.plans[0]
    found = f"{words_of(best.set)}: {format_time(best.iteration_time_s)}, {format_bytes(best.peak_memory_bytes)}"
    return Row(plan.name, found, stated, best.iteration_time_s <= WITHIN * time_s)


def words_of(keys: Mapping[str, Any]) -> str:
    """Return a found plan in short."""
    degrees = " ".join(f"{name[0]}{keys[f'parallel.{name}.degree']}" for name in ("tensor", "pipeline", "data"))
    ends = ["ends"] if keys["parallel.data.osdp.ends"] else []
    sharded = " ".join([*keys["parallel.data.osdp.layers"], *ends]) or "nothing"
    recomputed = " ".join(keys.get("training.recompute_layers", ())) or "nothing"
    return f"{degrees} b{keys['training.microbatch_size']}, sharded: {sharded}, recomputed: {recomputed}"


def rows(names: list[str], num_proofs: int) -> Iterator[Row]:
    """Yield the comparison of every plan, or of some."""
    with TemporaryDirectory() as folder:
        for plan in PLANS:
            if not names or plan.name in names:
                yield compared(plan, Path(folder), num_proofs)


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--proofs", type=int, default=4)
    given = parser.parse_args()
    print(markdown(list(rows(given.case, given.proofs))))
