"""Prices of iterations: bounds that no device can beat, and laws."""

import numpy as np
import pytest

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.serving.cost import Chunk, KernelCost
from sim.serving.errors import ServingError
from sim.serving.memory import num_blocks
from sim.serving.model import ServedExperts
from tests.sim.serving.roofline import RooflineCost
from tests.sim.serving.test_break_even import LLAMA

NODE = load_node("hgx-h100")


def cost(ranks: tuple[int, ...] = (1,)) -> KernelCost:
    """Return prices of Llama 2 7B on H100."""
    return KernelCost(model=LLAMA, node=NODE, profile=load_profile(NODE.device.profile), ranks_per_node=ranks)


@pytest.mark.parametrize("rows", [1, 8, 64, 256])
@pytest.mark.parametrize("context", [128.0, 1024.0, 8000.0])
def test_no_pass_beats_the_data_sheet(rows: int, context: float) -> None:
    """Kernels take longer than arithmetic and memory at their peaks, and less than four times as long."""
    at_peak = RooflineCost(model=LLAMA, device=NODE.device, compute_fraction=1.0, memory_fraction=1.0)
    least_s, found_s = (float(each.pass_s(rows, 1, np.array([context]))[0]) for each in (at_peak, cost()))
    assert least_s < found_s < 4.0 * least_s


def test_more_work_takes_longer() -> None:
    """A longer context, more rows, more positions and a longer chunk take longer; two devices take less than one."""
    found, contexts = cost(), np.array([100.0, 1000.0, 10_000.0])
    times = found.pass_s(32, 1, contexts)
    assert (np.diff(times) > 0.0).all()
    assert (found.pass_s(64, 1, contexts) > times).all()
    assert (found.pass_s(32, 8, contexts) > times).all()
    chunks = [float(found.pass_s(0, 1, np.zeros(1), [Chunk(tokens, 0)])[0]) for tokens in (512, 2048, 8192)]
    assert sorted(chunks) == chunks
    assert float(found.pass_s(0, 1, np.zeros(1), [Chunk(512, 4096)])[0]) > chunks[0]
    assert (cost((2,)).pass_s(32, 1, contexts) < times).all()


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
