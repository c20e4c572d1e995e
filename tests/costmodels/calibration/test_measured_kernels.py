"""Measured kernels against the packaged profiles: only rows that nothing was fitted to are judged."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.calibration.kernels import predict_kernels
from costmodels.calibration.samples import KernelSample, is_held_out
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from scenarios.calibration.tables import HELD_OUT_TABLES, read_samples

NODES = {"a100": "dgx-a100-80g", "h100": "hgx-h100", "h200": "hgx-h200", "b200": "dgx-b200"}
SHORT_S = 10e-6


def held_out(shared_data: Path, table: str) -> list[KernelSample]:
    """Return the half of a table that no profile was fitted to, by the hash of the shape."""
    path = shared_data / "kernels" / f"{table}_sxm.parquet"
    samples = [s for s in read_samples(path, None) if isinstance(s, KernelSample)]
    return [s for s in samples if is_held_out(s.key, HELD_OUT_TABLES)]


def errors(samples: list[KernelSample], generation: str) -> np.ndarray:
    """Return |predicted/measured - 1| of every sample under the packaged profile."""
    predicted = predict_kernels(samples, load_node(NODES[generation]), load_profile(generation))
    measured = np.array([s.seconds for s in samples])
    return np.abs(np.array(predicted) / measured - 1.0)


@pytest.mark.parametrize(
    ("generation", "all_rows", "longer"),
    [("a100", 0.062, 0.05), ("h100", 0.058, 0.05), ("h200", 0.061, 0.05), ("b200", 0.07, 0.06)],
)
def test_products_are_predicted(shared_data: Path, generation: str, all_rows: float, longer: float) -> None:
    """Products of any shape, and those longer than 10 us, come out within the stated mean error on unfitted rows."""
    samples = held_out(shared_data, f"gemm_bf16_{generation}")
    found = errors(samples, generation)
    assert len(samples) > 7000
    assert found.mean() <= all_rows
    assert found[[s.seconds > SHORT_S for s in samples]].mean() <= longer


@pytest.mark.parametrize(("generation", "limit"), [("a100", 0.03), ("h100", 0.045), ("h200", 0.045), ("b200", 0.05)])
def test_products_of_training_are_predicted(shared_data: Path, generation: str, limit: float) -> None:
    """Products of training steps (m of 1,024 or more; n and k of 1,024 or more) come out closer."""
    samples = held_out(shared_data, f"gemm_bf16_{generation}")
    ours = [s for s in samples if s.work.gemm and min(s.work.gemm.m, s.work.gemm.n, s.work.gemm.k) >= 1024]
    assert errors(ours, generation).mean() <= limit


def test_attention_of_another_generation_is_as_far_off_as_is_assumed_of_b200(shared_data: Path) -> None:
    """With the section of the other generation, attention is off as a whole by what B200's errors have in common."""
    biases = []
    for generation, other in (("a100", "h100"), ("a100", "h200"), ("h100", "a100"), ("h200", "a100")):
        samples = held_out(shared_data, f"context_attention_bf16_{generation}")
        profile = replace(load_profile(generation), attention=load_profile(other).attention)
        measured = np.array([s.seconds for s in samples])
        off = np.log(measured / predict_kernels(samples, load_node(NODES[generation]), profile))
        biases.append(np.average(off, weights=measured))
    spread = load_profile("b200").spread["attention"]
    longest = spread.deviation[-1][1]
    assert np.sqrt(np.mean(np.square(biases))) == pytest.approx(0.13, abs=0.01)
    assert longest * np.sqrt(spread.common) == pytest.approx(0.13, abs=0.01)


@pytest.mark.parametrize("generation", ["a100", "h100", "h200"])
@pytest.mark.parametrize(("table", "limit"), [("context", 0.073), ("generation", 0.072)])
def test_fused_attention_is_predicted(shared_data: Path, generation: str, table: str, limit: float) -> None:
    """Attention of whole sequences and of single new tokens come out within 7.3 and 7.2 % on unfitted rows."""
    samples = held_out(shared_data, f"{table}_attention_bf16_{generation}")
    assert len(samples) > 900
    assert errors(samples, generation).mean() <= limit
