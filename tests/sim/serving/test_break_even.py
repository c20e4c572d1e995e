"""When speculation stops paying: reference values of a plain roofline."""

import pytest

from costmodels.hardware import load_node
from sim.serving.decoding.tree import greedy_tree
from sim.serving.prices.model import ServedModel
from tests.sim.serving.roofline import RooflineCost
from tests.sim.serving.test_decoding import TABLE, expected_tokens

LLAMA = ServedModel(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_size=128, ffn_hidden_size=11008,
    vocab_size=32000,
)  # fmt: skip
NODES = {"A100": "dgx-a100-80g", "H100": "hgx-h100", "H200": "hgx-h200"}
OVERHEAD = 0.03


def pass_s(gpu: str, rows: int, positions: int, context: float = 1024.0) -> float:
    """Return the time of a pass."""
    cost = RooflineCost(model=LLAMA, device=load_node(NODES[gpu]).device)
    return cost.pass_s(rows, positions, context)


def speedup(gpu: str, rows: int, nodes: int, context: float = 1024.0) -> float:
    """Return the speedup of a tree of so many nodes over one token at a time."""
    tokens = expected_tokens(greedy_tree(TABLE, nodes), TABLE)
    ratio = pass_s(gpu, rows, 1, context) / pass_s(gpu, rows, 1 + nodes, context)
    return tokens * ratio / (1.0 + OVERHEAD)


@pytest.mark.parametrize(
    ("gpu", "rows", "step_ms", "speedups"),
    [
        ("A100", 1, 8.4303, (2.0305, 2.8078, 3.1844)),
        ("A100", 4, 9.4187, (2.0297, 2.8009, 1.5442)),
        ("A100", 8, 10.7365, (2.0289, 1.7359, 0.8801)),
        ("A100", 32, 18.6432, (1.7306, 0.7536, 0.3821)),
        ("A100", 128, 51.2046, (1.1883, 0.5174, 0.2623)),
        ("H100", 8, 6.5348, (2.0289, 2.7938, 1.5918)),
        ("H100", 64, 17.7640, (1.8030, 0.9945, 0.5409)),
        ("H200", 1, 3.5811, (2.0305, 2.8078, 3.1844)),
        ("H200", 64, 12.3978, (1.5622, 0.7537, 0.3929)),
    ],
)
def test_speedups_are_the_reference_values(gpu: str, rows: int, step_ms: float, speedups: tuple[float, ...]) -> None:
    """Step time and the speedup of trees of 4, 25 and 63 nodes; the catalogue's rates differ by less than 0.1 %."""
    assert pass_s(gpu, rows, 1) * 1e3 == pytest.approx(step_ms, rel=1e-3)
    assert [speedup(gpu, rows, nodes) for nodes in (4, 25, 63)] == pytest.approx(speedups, rel=2e-3)


@pytest.mark.parametrize(
    ("gpu", "context", "batches"),
    [
        ("A100", 256.0, (62, 14, 6)),
        ("A100", 1024.0, (None, 19, 7)),
        ("A100", 4096.0, (None, None, 16)),
        ("H100", 1024.0, (None, 63, 16)),
    ],
)
def test_batches_at_which_speculation_stops_paying(gpu: str, context: float, batches: tuple[int | None, ...]) -> None:
    """The first batch that is slower than one token at a time: long contexts push it out, large trees pull it in."""
    tried = (*range(1, 129), *range(160, 4096, 160))
    for nodes, expected in zip((4, 25, 63), batches, strict=True):
        assert next((rows for rows in tried if speedup(gpu, rows, nodes, context) < 1.0), None) == expected
