"""The cost of simulating a service: requests like those of Azure's conversations, on 8 replicas of Llama 2 7B.

``make bench`` has 5,000 of them. ``python -m benchmarks.serving 1000000`` prints the cost of so many.
"""

import resource
import sys
from collections.abc import Iterator
from time import process_time

import numpy as np

from benchmarks.measuring import Row, bare_loop_s, markdown
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.serving.batching import Batching
from sim.serving.decoding.method import Decoding, SteadyDraft
from sim.serving.prices.cost import KernelCost
from sim.serving.prices.model import ServedModel
from sim.serving.requests import Requests, drawn_lengths, gamma_arrivals_s
from sim.serving.service import ServiceSpec, serve

NUM_REQUESTS = 5_000
RATE = 5.2
DRAFTS = Decoding(positions=5, lengths=(0.4, 0.3, 0.2, 0.06, 0.04), draft=SteadyDraft(1e-3))
TARGETS_S = {NUM_REQUESTS: 2.0, 1_000_000: 300.0}
LLAMA_2_7B = ServedModel(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_size=128, ffn_hidden_size=11008,
    vocab_size=32000,
)  # fmt: skip


def service_rows(num_requests: int = NUM_REQUESTS) -> Iterator[Row]:
    """Yield the processor time of a service, one token at a time and with drafts."""
    target_s = TARGETS_S.get(num_requests)
    took_s = service_cpu_s(num_requests, Decoding())
    target, passed = ("", None) if target_s is None else (f"{target_s:g} s", took_s <= target_s)
    yield Row(f"service, {num_requests:,} requests on 8 replicas: processor time", f"{took_s:.2f} s", target, passed)
    if num_requests == NUM_REQUESTS:
        yield Row("- with drafts of 4 tokens", f"{service_cpu_s(num_requests, DRAFTS):.2f} s")


def service_cpu_s(num_requests: int, decoding: Decoding) -> float:
    """Return the processor seconds of a service, without prices of iterations in a cache."""
    generator, node = np.random.default_rng(0), load_node("dgx-a100-80g")
    requests = Requests(
        arrival_s=gamma_arrivals_s(num_requests, RATE, 1.0, generator),
        prompt_tokens=drawn_lengths(num_requests, 1155, 0.96, 14_000, generator),
        output_tokens=drawn_lengths(num_requests, 211, 0.77, 1_000, generator),
    )
    cost = KernelCost(model=LLAMA_2_7B, node=node, profile=load_profile(node.device.profile))
    spec = ServiceSpec(
        num_replicas=8, num_blocks=6738, batching=Batching(max_rows=128, max_tokens=4096), decoding=decoding
    )
    start_s = process_time()
    served = serve(spec, requests, cost)
    took_s = process_time() - start_s
    assert served.records.finished.all(), "every request is answered"
    return took_s


def main(num_requests: int) -> int:
    """Print the cost of so many requests, in bare SimPy loops too, and the peak memory; return the exit code."""
    loops_s = [bare_loop_s() for _ in range(3)]
    rows = list(service_rows(num_requests))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    loops_s += [bare_loop_s() for _ in range(3)]
    rows.append(Row("- a bare SimPy loop of 200,000 timeouts, median", f"{np.median(loops_s):.2f} s"))
    rows.append(Row("- peak memory", f"{peak_bytes / 2**20:,.0f} MiB", "2,048 MiB", peak_bytes <= 2**31))
    print(markdown(rows))
    return 1 if any(row.passed is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
