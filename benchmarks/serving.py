"""The cost of simulating a service: 5,000 requests like those of Azure's conversations, on 8 replicas."""

from collections.abc import Iterator
from time import process_time

import numpy as np
from measuring import Row

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.serving.batching import Batching
from sim.serving.prices.cost import KernelCost
from sim.serving.prices.model import ServedModel
from sim.serving.requests import Requests, drawn_lengths, gamma_arrivals_s
from sim.serving.service import ServiceSpec, serve

NUM_REQUESTS = 5_000
RATE = 5.2
LLAMA_2_7B = ServedModel(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_size=128, ffn_hidden_size=11008,
    vocab_size=32000,
)  # fmt: skip


def service_rows() -> Iterator[Row]:
    """Yield the processor time of a service, without prices of iterations in a cache."""
    generator, node = np.random.default_rng(0), load_node("dgx-a100-80g")
    requests = Requests(
        arrival_s=gamma_arrivals_s(NUM_REQUESTS, RATE, 1.0, generator),
        prompt_tokens=drawn_lengths(NUM_REQUESTS, 1155, 0.96, 14_000, generator),
        output_tokens=drawn_lengths(NUM_REQUESTS, 211, 0.77, 1_000, generator),
    )
    cost = KernelCost(model=LLAMA_2_7B, node=node, profile=load_profile(node.device.profile))
    spec = ServiceSpec(num_replicas=8, num_blocks=6738, batching=Batching(max_rows=128, max_tokens=4096))
    start_s = process_time()
    serve(spec, requests, cost)
    took_s = process_time() - start_s
    yield Row("service, 5,000 requests on 8 replicas: processor time", f"{took_s:.2f} s", "2 s", took_s <= 2.0)
