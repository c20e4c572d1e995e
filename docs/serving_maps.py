"""The figures of docs/serving.md: where speculative decoding pays, and waiting times against load.

.venv/bin/python docs/serving_maps.py

It prints the table of break-even batches, and draws docs/serving-break-even.svg and docs/serving-load.svg.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from scenarios.workloads.loading import scenario_from_mapping
from scenarios.workloads.service.reading import ServiceScenario
from scenarios.workloads.service.summary import ServiceSummary, summarise
from sim.serving.service import serve

HERE: Final = Path(__file__).parent
BATCHES: Final = np.unique(np.round(np.geomspace(1, 1024, 81)).astype(int))
CONTEXTS: Final = (256, 1024, 4096, 16384)
NODES: Final = ("dgx-a100-80g", "hgx-h100", "hgx-h200")
TREES: Final = (4, 16, 63)
RATES: Final = (5.0, 10.0, 20.0, 30.0, 40.0, 50.0)
NO_METHOD: Final = {"method": "autoregressive"}


def service(node: str, decoding: dict[str, Any], **requests: Any) -> ServiceScenario:
    """Return one replica of Llama 3 8B on a device of a node."""
    found = scenario_from_mapping(
        {
            "name": "map", "workload": "service", "cluster": {"node": node, "num_nodes": 1},
            "model": {"preset": "llama-3-8b"}, "requests": {"rate": 1.0, "num_requests": 1} | requests,
            "service": {"replicas": 1, "batching": "chunked", "framework": "vllm"}, "decoding": decoding,
        },
        Path(__file__), node,
    )  # fmt: skip
    assert isinstance(found, ServiceScenario)
    return found


def clover(nodes: int) -> dict[str, Any]:
    """Return Clover's decoding with a tree of so many nodes and the recorded hit rates."""
    return {"method": "clover", "drafted": nodes, "recorded": "python_help"}


def speedups(scenario: ServiceScenario, context: int) -> NDArray[np.float64]:
    """Return the speedup over one token at a time in each batch; not a number where the memory is too small."""
    decoding, cost, found = scenario.spec.decoding, scenario.cost, []
    tokens = sum(count * chance for count, chance in enumerate(decoding.lengths, start=1))
    most = scenario.spec.num_blocks * scenario.spec.block_tokens // context
    for rows in BATCHES[most >= BATCHES].tolist():
        plain_s, verified_s = (cost.pass_s(rows, positions, float(context)) for positions in (1, decoding.positions))
        found.append(tokens * plain_s / (verified_s + decoding.draft_s(rows)))
    return np.array(found + [np.nan] * (len(BATCHES) - len(found)))


def break_even(gains: NDArray[np.float64]) -> str:
    """Return the first batch without a gain, in words."""
    slower = np.flatnonzero(gains < 1.0)
    if len(slower):
        return str(BATCHES[slower[0]])
    return f"over {BATCHES[np.isfinite(gains)][-1]}"


def table_lines() -> Iterator[str]:
    """Yield the table of break-even batches."""
    yield "| device | context | " + " | ".join(f"{nodes} nodes" for nodes in TREES) + " |"
    yield "|---|---|" + "---|" * len(TREES)
    for node in NODES:
        scenarios = [service(node, clover(nodes)) for nodes in TREES]
        for context in CONTEXTS:
            cells = [break_even(speedups(scenario, context)) for scenario in scenarios]
            name = scenarios[0].cost.node.device.name
            yield f"| {name} | {context:,} | {' | '.join(cells)} |"


def draw_gains(path: Path) -> None:
    """Draw the speedup over batch for each tree and context, on an H100."""
    figure = Figure(figsize=(9.0, 3.0), layout="constrained")
    for axes, nodes in zip(figure.subplots(1, len(TREES), sharey=True), TREES, strict=True):
        scenario = service("hgx-h100", clover(nodes))
        for context in CONTEXTS:
            axes.plot(BATCHES, speedups(scenario, context), label=f"{context:,} tokens")
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set(xscale="log", xlabel="sequences in the batch", title=f"tree of {nodes} nodes")
    figure.axes[0].set_ylim(bottom=0.0)
    figure.axes[0].set_ylabel("speedup over one token at a time")
    figure.axes[0].legend(title="context")
    figure.savefig(path, metadata={"Date": None})


def under_load(rate: float, decoding: dict[str, Any]) -> ServiceSummary:
    """Return what comes of 300 requests at a rate."""
    requests = {"rate": rate, "num_requests": 300, "prompt_tokens": 1024, "output_tokens": 128, "output_variation": 0.5}
    scenario = service("hgx-h100", decoding, **requests)
    return summarise(scenario, serve(scenario.spec, scenario.requests, scenario.cost))


def draw_load(path: Path) -> None:
    """Draw times to the first token and per token against the rate of requests, on an H100."""
    figure = Figure(figsize=(9.0, 3.2), layout="constrained")
    first, later = figure.subplots(1, 2)
    for name, decoding in (("one token at a time", NO_METHOD), ("Clover, 4 nodes", clover(4))):
        found = [under_load(rate, decoding) for rate in RATES]
        for axes, times in ((first, [each.ttft_s for each in found]), (later, [each.tpot_s for each in found])):
            for part, style in (("p50", "-"), ("p99", "--")):
                values = [1e3 * getattr(each, part) for each in times]
                axes.plot(RATES, values, style, label=f"{name}, {part[1:]} %", color="C0" if name[0] == "o" else "C1")
    first.set(yscale="log", ylabel="time to first token, ms", xlabel="requests per second")
    later.set(ylabel="time per output token, ms", xlabel="requests per second")
    first.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the table and draw both figures."""
    mpl.rcParams["svg.hashsalt"] = "meshtwin"
    for line in table_lines():
        click.echo(line)
    draw_gains(HERE / "serving-break-even.svg")
    draw_load(HERE / "serving-load.svg")


if __name__ == "__main__":
    main()
