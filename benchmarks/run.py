"""Speed and memory of meshtwin: ``make bench``. The exit code is 1 if a target is missed."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from benchmarks.folding import fold_anew, hundred_thousand_ranks
from benchmarks.measuring import Row, command_cost, interleaved_s, markdown, median_cost
from benchmarks.profiles import profile_rows
from benchmarks.repeating import repricing_rows, step_times_rows
from benchmarks.serving import service_rows
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import plan_of
from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.topology import Routes
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.loop import EventLoop
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.facts.namesakes import sharing_tasks
from sim.training.spec.job import DelaySpec, PipelineSpec, TextbookTraining
from sim.training.steps.textbook import build_textbook

SCENARIOS = Path(__file__).parent.parent / "scenarios" / "library"
COMMAND = str(Path(sys.executable).with_name("simulate"))
MIB = 2**20
LONG_SEQUENCES = [
    word
    for change in (
        "model.sequence_length=131072", "training.global_batch_size=128", "parallel.context.degree=16",
        "parallel.context.method=p2p", "parallel.data.degree=8",
    )
    for word in ("--set", change)
]  # fmt: skip
"""Changes of a scenario of Llama 3 405B: sequences sixteen times as long, with the same tokens per step."""


def _set(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


_OF_4096 = ("cluster.num_nodes=1024", "model.num_layers=24")
MESHES = {
    "2.5D, mesh 4 x 4 x 4, x 64 replicas": _set(
        *_OF_4096, "training.global_batch_size=1024", "parallel.data={degree: 64}",
    ),
    "2.5D, mesh 16 x 16 x 16": _set(
        *_OF_4096, "training.global_batch_size=256", "training.microbatch_size=256",
        "parallel.tensor={method: 2.5d, degree: 4096, mesh: [16, 16, 16]}",
    ),
    "3D, mesh 16 x 16 x 16": _set(
        *_OF_4096, "training.global_batch_size=256", "training.microbatch_size=256", "model.vocab_size=4096",
        "parallel.tensor={method: 3d, degree: 4096, mesh: [16, 16, 16]}",
    ),
}  # fmt: skip
"""Changes of the scenario of Tesseract on 64 A100: the same model with 24 layers, on 4,096 A100."""
HEAVY = ("torch", "pandas", "matplotlib", "pyarrow", "plotly", "scipy", "simpy")


def engine_rows() -> Iterator[Row]:
    """Yield the engine time of the largest published GPT: 64 stages, 512 micro-batches, 3,072 GPUs."""
    scenario = load_scenario(SCENARIOS / "gpt-1t-3072.yaml")
    runs: list[SimulatedRun] = []
    planned_s, _, looped_s = interleaved_s(
        [
            partial(plan_of, scenario),
            lambda: runs.append(simulate(sharing_tasks(plan_of(scenario)), scenario.pricing())),
            lambda: EventLoop(runs[-1].graph).run(),
        ],
        5,
    )
    engine_s, loop_s = statistics.median(run.wall_time_s for run in runs), statistics.median(looped_s)
    compiled_s = statistics.median(run.wall_time_s - loop for run, loop in zip(runs, looped_s, strict=True))
    yield Row("GPT 1T on 3,072 GPUs: engine", f"{engine_s:.2f} s", "0.8 s", engine_s <= 0.8)
    yield Row("- pricing and compiling", f"{compiled_s:.2f} s")
    yield Row(f"- event loop, {runs[-1].num_events:,} events", f"{loop_s:.2f} s")
    yield Row("- (before the engine) building the plan", f"{statistics.median(planned_s):.2f} s")
    whole = simulate(plan_of(scenario), scenario.pricing(), repeat=False)
    yield Row(f"- every micro-batch simulated, {whole.num_events:,} events", f"{whole.wall_time_s:.2f} s")


def command_rows() -> Iterator[Row]:
    """Yield the cost of whole commands, measured from outside: with JSON output, and with advice that is tried."""
    for name, words, time_target_s in (
        ("llama3-405b-16384-h100", "Llama 3 405B on 16,384 H100", 3.0),
        ("gpt-1t-3072", "GPT 1T on 3,072 GPUs", None),
        ("quickstart", "GPT 145.6B on 1,536 GPUs", None),
    ):
        command = [COMMAND, str(SCENARIOS / f"{name}.yaml")]
        cost = median_cost([*command, "--json"], 3)
        wall = Row(f"{words}: whole command", f"{cost.wall_s:.2f} s")
        memory = Row(f"{words}: peak memory", f"{cost.peak_bytes / MIB:.0f} MiB")
        if time_target_s is not None:
            wall = Row(wall.what, wall.measured, f"{time_target_s:.0f} s", cost.wall_s <= time_target_s)
            memory = Row(memory.what, memory.measured, "1024 MiB", cost.peak_bytes <= 1024 * MIB)
        yield from (wall, Row("- with advice", f"{median_cost(command, 3).wall_s:.2f} s"), memory)


def large_rows() -> Iterator[Row]:
    """Yield the cost of whole commands on the largest clusters, with long sequences, and with one slow device."""
    for name, options, words, most_s in (
        ("clusters/llama3-405b-98304-fat-tree", [], "Llama 3 405B on 98,304 H100 of a fat tree", 10.0),
        ("llama3-405b-16384-h100", LONG_SEQUENCES, "Llama 3 405B, 131,072 tokens in rings of 16, 16,384 H100", 10.0),
        ("clusters/llama3-405b-1024-straggler", [], "Llama 3 405B on 1,024 H100 of a fat tree, one straggler", 20.0),
        ("clusters/llama3-405b-1024-straggler", ["--no-fold"], "- every rank simulated (--no-fold)", 60.0),
    ):
        cost = command_cost([COMMAND, str(SCENARIOS / f"{name}.yaml"), "--json", *options])
        measured = f"{cost.wall_s:.1f} s, {cost.peak_bytes / MIB:.0f} MiB"
        met = cost.wall_s <= most_s and cost.peak_bytes <= 2048 * MIB
        yield Row(f"{words}: whole command", measured, f"{most_s:.0f} s, 2048 MiB", met)


def mesh_rows() -> Iterator[Row]:
    """Yield the cost of whole commands with tensor parallelism on meshes; every scenario has 4,096 ranks."""
    for words, options in MESHES.items():
        cost = command_cost([COMMAND, str(SCENARIOS / "papers/tesseract-64-a100.yaml"), "--json", *options])
        yield Row(f"{words}, 4,096 A100: whole command", f"{cost.wall_s:.1f} s", "5 s", cost.wall_s <= 5.0)


def rate_rows() -> Iterator[Row]:
    """Yield the events per second of a compiled plan, and of a bare SimPy loop with equally many timeouts."""
    job = TextbookTraining(
        model=DelaySpec(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, hop_s=0.0),
        num_microbatches=512,
        pipeline=PipelineSpec(degree=64, schedule="1f1b"),
    )
    run = simulate(build_textbook(job, "1F1B, 64 stages, 512 micro-batches"), TextbookPricing(), repeat=False)
    events = run.num_events
    ours_s, bare_s, crowd_s = interleaved_s(
        [lambda: EventLoop(run.graph).run(), lambda: bare_timeouts(events, 1), lambda: bare_timeouts(events, 64)], 9
    )
    ours, bare, crowd = (events / statistics.median(times_s) for times_s in (ours_s, bare_s, crowd_s))
    ratio = statistics.median(b / o for o, b in zip(ours_s, bare_s, strict=True))
    crowd_ratio = statistics.median(c / o for o, c in zip(ours_s, crowd_s, strict=True))
    yield Row(f"1F1B, 64 stages x 512 micro-batches: event loop, {events:,} events", f"{ours / 1e3:,.0f} k events/s")
    yield Row("bare SimPy timeout loop, as many events, one process", f"{bare / 1e3:,.0f} k events/s")
    yield Row("- the same, 64 processes (as many waiting at once)", f"{crowd / 1e3:,.0f} k events/s")
    yield Row("event loop against one process, median of 9 rounds", f"{ratio:.0%}", "50 %", ratio >= 0.5)
    yield Row("- against 64 processes", f"{crowd_ratio:.0%}")


def bare_timeouts(count: int, num_processes: int) -> None:
    """Run SimPy processes that wait ``count`` times in total."""
    environment = simpy.Environment()

    def wait() -> Iterator[simpy.Event]:
        for _ in range(count // num_processes):
            yield environment.timeout(1.0)

    for _ in range(num_processes):
        environment.process(wait())
    environment.run()


def topology_rows() -> Iterator[Row]:
    """Yield the time to build a topology of 100,000 devices and to route a ring over all of them."""
    for name, description, num_nodes in (
        ("fat tree of 8-GPU nodes", {"nodes": "hgx-h100", "fabric": {"kind": "fat-tree", "radix": 74}}, 12_500),
        ("rails", {"base": "superpod-h100", "fabric": {"spines": 32}}, 12_500),
        ("NVL72 racks", {"base": "gb200-nvl72-pods"}, 25_002),
    ):
        (times_s,) = interleaved_s([partial(route_ring, description, num_nodes)], 3)
        median_s = statistics.median(times_s)
        yield Row(f"100,000 devices ({name}): build and route a ring", f"{median_s:.2f} s", "1 s", median_s <= 1.0)


def route_ring(description: Mapping[str, Any], num_nodes: int) -> Routes:
    """Build a cluster's topology; return the routes from every device to the next one."""
    topology = parse_topology(description, num_nodes)
    ring = np.arange(topology.num_devices)
    return topology.routes(ring, np.roll(ring, -1))


def folding_rows() -> Iterator[Row]:
    """Yield the cost of folding 100,000 ranks on leaves that end in the middle of groups."""
    plan, pricing = hundred_thousand_ranks()
    (times_s,) = interleaved_s([partial(fold_anew, plan, pricing)], 3)
    median_s, classes = statistics.median(times_s), len(fold_anew(plan, pricing).multiplicity)
    yield Row(f"100,000 ranks on leaf-spine: fold to {classes:,}", f"{median_s:.2f} s", "5 s", median_s <= 5.0)
    cost = command_cost([sys.executable, str(Path(__file__).with_name("folding.py"))])
    yield Row("- peak memory, plan and topology included", f"{cost.peak_bytes / MIB:.0f} MiB", "2048 MiB",
              cost.peak_bytes <= 2048 * MIB)  # fmt: skip


def help_rows() -> Iterator[Row]:
    """Yield the time of ``simulate --help``, and the heavy packages that it imports."""
    cost = median_cost([COMMAND, "--help"], 7)
    yield Row("simulate --help", f"{cost.wall_s:.2f} s", "0.4 s", cost.wall_s <= 0.4)
    yield Row("- peak memory", f"{cost.peak_bytes / MIB:.0f} MiB")
    code = (
        "import json, sys; from scenarios.command_line import group; group.main(['--help'], standalone_mode=False);"
        f"print(); print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = json.loads(out.splitlines()[-1])
    yield Row(f"- imports of {', '.join(HEAVY)}", ", ".join(loaded) or "none", "none", not loaded)


def main() -> int:
    """Print the machine and the table; return the exit code."""
    load = f", load before {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()} cores{load}\n")
    commands = [*command_rows(), *large_rows(), *mesh_rows(), *profile_rows(COMMAND), *help_rows(), *service_rows()]
    repeated = [*repricing_rows(SCENARIOS), *step_times_rows(SCENARIOS)]
    rows = [*rate_rows(), *engine_rows(), *repeated, *topology_rows(), *folding_rows(), *commands]
    print(markdown(rows))
    return 1 if any(row.passed is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
