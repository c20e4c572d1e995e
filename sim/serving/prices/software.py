"""A serving framework's share of the time: its host's work, and its own collectives within a node.

vLLM, SGLang and TensorRT-LLM sum over the tensor-parallel ranks of a node with kernels of their own. In one shot every
rank reads what all others have; in two shots every rank sums a part, and then gathers the parts. The kernels reach the
links' rate; the latency of such a kernel is a constant of the framework.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

from costmodels.collectives.network import NetworkParameters

ExpertMessages = Literal["choices", "nodes"]
FrameworkName = Literal["vllm", "sglang", "tensorrt_llm"]


class ServingSoftware(Struct, frozen=True, kw_only=True):
    """The constants of a framework, in seconds.

    ``iteration_s``: of every iteration, beside its kernels: scheduler, sampling, launches.
    ``sequence_s``: of every sequence in an iteration: its sampled token, its text, its message.
    ``request_s``: of every request before it reaches the queue: its message and its tokenizer.
    ``all_reduce_s``: latency of the framework's own collectives within a node; None: it uses NCCL's alone.
    ``expert_messages``: a token crosses the network once for each expert that it chooses, or once for each node that
    has some of them (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.2).
    """

    iteration_s: float = 0.0
    sequence_s: float = 0.0
    request_s: float = 0.0
    all_reduce_s: float | None = None
    expert_messages: ExpertMessages = "choices"

    def collective_s(self, kind: str, num_bytes: int, num_ranks: int, network: NetworkParameters) -> float:
        """Return the time of the framework's own ``all_reduce`` or ``all_gather`` in a node; infinite without one.

        ``num_bytes``: of the sum, or of the gathered output.
        """
        if self.all_reduce_s is None:
            return float("inf")
        part_s = num_bytes / num_ranks / network.intra_bandwidth_bytes_per_s
        others_s = (num_ranks - 1) * part_s
        if kind == "all_gather":
            return self.all_reduce_s + others_s
        return min(self.all_reduce_s + num_ranks * others_s, 2.0 * (self.all_reduce_s + others_s))


FRAMEWORKS: Final[Mapping[FrameworkName, ServingSoftware]] = MappingProxyType(
    {
        "vllm": ServingSoftware(iteration_s=1.2e-3, sequence_s=40e-6, request_s=55e-3, all_reduce_s=5e-6),
        "sglang": ServingSoftware(all_reduce_s=5e-6),
        "tensorrt_llm": ServingSoftware(iteration_s=0.13e-3, sequence_s=38e-6, all_reduce_s=5e-6),
    }
)
"""Constants of frameworks, fitted to half of the rows of ``traces/published/services_tpot``.

They were searched for with the model and the loss of ``docs/fit_services``. That script finds 1.15 ms, 43 us and 55 ms
for vLLM, 0.07 ms and 41 us for TensorRT-LLM and nothing for SGLang, at 5 us.

``request_s`` of vLLM is fitted to half of ``services_ttft``; no first tokens of the others were fitted.
"""
