"""The cost of simulating steps with many micro-batches: ``python -m benchmarks.microbatches`` prints the table.

Commands are measured from outside, in processor seconds, against a bare SimPy loop of 200,000 timeouts in the same run.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Final

from benchmarks.measuring import Row, bare_loop_s, command_cost, markdown
from benchmarks.scaling import exponent
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate

COMMAND: Final = str(Path(sys.executable).with_name("simulate"))
LIBRARY: Final = Path(__file__).parent.parent / "scenarios" / "library"
MIB: Final = 2**20

LLAMA: Final = """
name: Llama 3 70B on 64 H100
cluster: {node: hgx-h100, num_nodes: 8}
model: {preset: llama-3-70b}
training: {global_batch_size: 1024, microbatch_size: 1, precision: bf16, optimizer: adam}
parallel:
  tensor: {degree: 8, sequence_parallel: true}
  pipeline: {degree: 2}
  data: {degree: 4}
"""

STEPS: Final[Mapping[str, tuple[Sequence[str], float]]] = {
    "tensor 8, pipeline 2": ((), 2.5),
    "the same, with collective_matmul": (("parallel.tensor.collective_matmul=true",), 6.0),
    "tensor 4, ZeRO-3": (
        ("parallel.tensor.degree=4", "parallel.pipeline.degree=1", "parallel.data={degree: 16, zero_stage: 3}"), 6.0,
    ),
    "tensor 8, pipeline 4, 4 virtual stages": (
        ("parallel.pipeline={degree: 4, schedule: interleaved_1f1b, virtual_stages: 4}", "parallel.data.degree=2"), 3.0,
    ),
    "one node, tensor 4, pipeline 2, zb_h1, 3,000 micro-batches": (
        ("cluster.num_nodes=1", "parallel.tensor.degree=4", "parallel.pipeline.schedule=zb_h1",
         "parallel.data.degree=1", "training.global_batch_size=3000"), 4.0,
    ),
    "- with a straggler": (
        ("cluster.num_nodes=1", "parallel.tensor.degree=4", "parallel.pipeline.schedule=zb_h1",
         "parallel.data.degree=1", "training.global_batch_size=3000",
         "cluster.stragglers=[{device: 3, slowdown: 1.2}]"), 4.0,
    ),
}  # fmt: skip
"""Changes of ``LLAMA``, and the largest allowed cost of their simulation, in bare loops."""

SHIPPED: Final = {
    "gpt-1t-3072": ("GPT 1T on 3,072 A100", 4.0),
    "llama3-405b-16384-h100": ("Llama 3 405B on 16,384 H100", 3.0),
    "clusters/llama3-405b-98304-fat-tree": ("Llama 3 405B on 98,304 H100", 12.0),
    "papers/fold3d-530b-2520-a100": ("530B, all in all out, on 2,520 A100", 6.0),
}

NUMBERS: Final = (32, 128, 512, 2048, 4096)


def rows() -> Iterator[Row]:
    """Yield the costs of commands, in bare loops."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "llama.yaml"
        path.write_text(LLAMA)
        for words, (changes, most) in STEPS.items():
            options = [word for change in changes for word in ("--set", change)]
            yield _in_loops(f"Llama 3 70B on H100, {words}", [str(path), *options], most)
        for name, (words, most) in SHIPPED.items():
            yield _in_loops(words, [str(LIBRARY / f"{name}.yaml")], most)
        yield from _growth_rows(path)
    yield _in_loops("- simulate list nodes: starting the program alone", ["list", "nodes"], None)


def _in_loops(words: str, arguments: Sequence[str], most: float | None) -> Row:
    """Return the cost of a command in bare loops: the median of three runs, interleaved with three bare loops."""
    json = ["--json"] if most is not None else []
    pairs = [(command_cost([COMMAND, *arguments, *json]).cpu_s, bare_loop_s()) for _ in range(3)]
    cpu_s, loops = statistics.median(s for s, _ in pairs), statistics.median(s / loop_s for s, loop_s in pairs)
    target = "" if most is None else f"{most:g} loops"
    return Row(words, f"{cpu_s:.2f} s, {loops:.1f} loops", target, None if most is None else loops <= most)


def _growth_rows(path: Path) -> Iterator[Row]:
    """Yield the growth of processor time and memory with the number of micro-batches."""
    simulate(load_scenario(path))  # files that are read and modules that are imported once
    seconds = []
    for number in NUMBERS:
        scenario = load_scenario(path, [f"training.global_batch_size={4 * number}"])
        began_s = process_time()
        simulate(scenario)
        seconds.append(process_time() - began_s)
    power, error = exponent(NUMBERS, seconds)
    costs = ", ".join(f"{number:,}: {found:.2f} s" for number, found in zip(NUMBERS, seconds, strict=True))
    yield Row(f"tensor 8, pipeline 2 by number of micro-batches ({costs})", f"power {power:.2f} ± {error:.2f}", "0.15",
              power <= 0.15)  # fmt: skip
    memory = [
        command_cost([COMMAND, str(path), "--json", "--set", f"training.global_batch_size={4 * number}"]).peak_bytes
        for number in (NUMBERS[0], NUMBERS[-1])
    ]
    yield Row(
        f"- peak memory of {NUMBERS[-1]:,} against {NUMBERS[0]}",
        f"{memory[1] / MIB:.0f} against {memory[0] / MIB:.0f} MiB", "10 % more", memory[1] <= 1.1 * memory[0],
    )  # fmt: skip


def main() -> int:
    """Print the table; return the exit code."""
    found = list(rows())
    print(markdown(found))
    return 1 if any(row.passed is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
