"""Prices of iterations: bounds that no device can beat, and laws."""

from dataclasses import replace

import pytest

from costmodels.hardware import load_node
from costmodels.profile import load_profile, network_parameters
from sim.serving.errors import ServingError
from sim.serving.memory import num_blocks
from sim.serving.prices.cost import KernelCost
from sim.serving.prices.layout import ReplicaLayout
from sim.serving.prices.microbatches import Chunk
from sim.serving.prices.model import ServedExperts
from sim.serving.prices.software import ServingSoftware
from tests.sim.serving.roofline import RooflineCost
from tests.sim.serving.test_break_even import LLAMA

NODE = load_node("hgx-h100")


def cost(**degrees: int) -> KernelCost:
    """Return prices of Llama 2 7B on H100."""
    return KernelCost(model=LLAMA, node=NODE, profile=load_profile(NODE.device.profile), layout=layout(**degrees))


def layout(**degrees: int) -> ReplicaLayout:
    """Return a replica with these degrees, as ``tensor_degree``, on nodes of eight."""
    return ReplicaLayout(devices_per_node=8, **degrees)


@pytest.mark.parametrize("rows", [1, 8, 64, 256])
@pytest.mark.parametrize("context", [128.0, 1024.0, 8000.0])
def test_no_pass_beats_the_data_sheet(rows: int, context: float) -> None:
    """Kernels take longer than arithmetic and memory at their peaks, and less than four times as long."""
    at_peak = RooflineCost(model=LLAMA, device=NODE.device, compute_fraction=1.0, memory_fraction=1.0)
    least_s, found_s = (each.pass_s(rows, 1, context) for each in (at_peak, cost()))
    assert least_s < found_s < 4.0 * least_s


def test_more_work_takes_longer() -> None:
    """A longer context, more rows, more positions and a longer chunk take longer; two devices take less than one."""
    found, contexts = cost(), (100.0, 1000.0, 10_000.0)
    times = [found.pass_s(32, 1, context) for context in contexts]
    assert sorted(set(times)) == times
    for more in (cost().steps(64, 1), cost().steps(32, 8)):
        assert all(more.at(context) > time_s for context, time_s in zip(contexts, times, strict=True))
    chunks = [found.pass_s(0, 1, 0.0, [Chunk(tokens, 0)]) for tokens in (512, 2048, 8192)]
    assert sorted(chunks) == chunks
    assert found.pass_s(0, 1, 0.0, [Chunk(512, 4096)]) > chunks[0]
    assert all(cost(tensor_degree=2).pass_s(32, 1, each) < time_s for each, time_s in zip(contexts, times, strict=True))


def test_blocks_of_llama_2_7b_are_the_reference_value() -> None:
    """80 GB, 90 % of it, 2 GB of activations: 6,738 blocks of 8 MiB."""
    keys = {"memory_fraction": 0.9, "activation_bytes": 2_000_000_000, "block_tokens": 16}
    assert num_blocks(cost(), device_bytes=80_000_000_000, **keys) == 6738
    with pytest.raises(ServingError, match="leave no room for keys and values"):
        num_blocks(cost(), device_bytes=16_000_000_000, **keys)


def test_tokens_touch_some_experts() -> None:
    """One token touches as many experts as it chooses, many tokens nearly all."""
    experts = ServedExperts(num_experts=64, top_k=4, ffn_hidden_size=1024)
    assert experts.touched(1) == pytest.approx(4.0)
    assert 63.9 < experts.touched(200) < 64.0


def test_host_time_is_added_per_iteration_and_per_sequence() -> None:
    """An iteration takes its kernels, the framework's time, and its time per sequence, of prompts too."""
    software = ServingSoftware(iteration_s=1e-3, sequence_s=1e-5)
    plain, hosted, chunk = cost(), replace(cost(), software=software), [Chunk(64, 0)]
    added = hosted.pass_s(30, 1, 500.0, chunk) - plain.pass_s(30, 1, 500.0, chunk)
    assert added == pytest.approx(1e-3 + 31 * 1e-5)


@pytest.mark.parametrize("num_bytes", [16, 1 << 16, 1 << 26])
def test_own_collectives_send_what_their_steps_send(num_bytes: int) -> None:
    """One shot reads all others' tensors; two shots read a part of each, twice; a gather reads the others' parts."""
    network = network_parameters(NODE, load_profile(NODE.device.profile))
    rate, own = network.intra_bandwidth_bytes_per_s, ServingSoftware(all_reduce_s=5e-6)
    one_shot, two_shots = 5e-6 + 7 * num_bytes / rate, 10e-6 + 2 * 7 * num_bytes / 8 / rate
    assert own.collective_s("all_reduce", num_bytes, 8, network) == pytest.approx(min(one_shot, two_shots))
    assert own.collective_s("all_gather", num_bytes, 8, network) == pytest.approx(5e-6 + 7 * num_bytes / 8 / rate)
    assert ServingSoftware().collective_s("all_reduce", num_bytes, 8, network) == float("inf")


def test_own_collectives_help_small_batches_and_never_hurt() -> None:
    """A fast kernel of the framework shortens decoding on four devices; one that is slower than NCCL's is not used."""
    fast, slow = (replace(cost(tensor_degree=4), software=ServingSoftware(all_reduce_s=each)) for each in (4e-6, 1.0))
    assert fast.linear_s(8) < 0.9 * cost(tensor_degree=4).linear_s(8)
    assert slow.linear_s(8) == cost(tensor_degree=4).linear_s(8)


def test_a_cache_of_half_the_bytes_holds_twice_the_blocks_and_is_read_faster() -> None:
    """Keys and values of 8 bits: twice the blocks, little more than half the time to read them, prompts as before."""
    half = replace(cost(), cache_dtype="float8_e4m3fn")
    keys = {"memory_fraction": 0.9, "activation_bytes": 2_000_000_000, "block_tokens": 16}
    blocks = [num_blocks(each, device_bytes=80_000_000_000, **keys) for each in (cost(), half)]
    assert blocks[1] in (2 * blocks[0], 2 * blocks[0] + 1)
    assert 0.5 < half.rows_s(64, 1)[-1] / cost().rows_s(64, 1)[-1] < 0.6
    assert half.chunk_s(Chunk(512, 512)) == cost().chunk_s(Chunk(512, 512))
