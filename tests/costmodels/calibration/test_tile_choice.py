"""Choosing tiles and splits: those that a made-up library has are found again from its times."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.calibration.batches import Batch, batches, predict
from costmodels.calibration.samples import KernelSample
from costmodels.calibration.tile_choice import with_chosen_kernels
from costmodels.hardware import load_node
from costmodels.kernels.tensor import GemmShape, Work
from costmodels.profile import load_profile
from costmodels.timing.gemm import GemmProfile

NODE = load_node("dgx-a100-80g")
SIZES = (16, 96, 257, 640, 1536, 4096)


def products() -> list[KernelSample]:
    """Return matrix products of many shapes, without a time yet."""
    shapes = [(m, n, k) for m in SIZES for n in SIZES for k in (64, 512, 4096, 16384)]
    return [
        KernelSample(
            key=f"{m} {n} {k}", family="gemm", dtype="bfloat16", seconds=1.0,
            work=Work(2.0 * m * n * k, 2.0 * m * n * k, 2 * (m * k + k * n), 2 * m * n, GemmShape(m, n, k)),
        )
        for m, n, k in shapes
    ]  # fmt: skip


def ranked_by_times(gemm: GemmProfile) -> GemmProfile:
    """Return the profile of a library that ranks by its kernels' times, but for what no library knows."""
    return replace(gemm, ranked_quantisation=gemm.wave_quantisation, ranked_cache=1.0, ranked_split=1.0)


def chosen_in_turns(ours: Sequence[Batch], seconds: np.ndarray, gemm: GemmProfile) -> GemmProfile:
    """Return what is chosen in four turns, as many as a fit takes at least."""
    for _ in range(4):
        gemm = with_chosen_kernels(ours, seconds, np.ones_like(seconds), NODE.device, gemm)
    return gemm


@pytest.mark.parametrize(
    ("tiles", "splits"), [(((64, 64), (128, 256)), (1, 4)), (((32, 64), (128, 128), (256, 128)), (1, 2, 16))]
)
def test_a_librarys_kernels_are_found_again(tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...]) -> None:
    """From times of a library with few kernels, the choice predicts them again; it starts from other kernels."""
    profile, ours = load_profile("a100"), batches(products())
    gemm = ranked_by_times(profile.gemm)
    seconds = predict(ours, NODE, replace(profile, gemm=replace(gemm, tiles=tiles, splits=splits)))
    start = replace(gemm, tiles=((64, 128), (96, 64)), splits=(1, 8))
    chosen = chosen_in_turns(ours, seconds, start)
    errors = np.abs(predict(ours, NODE, replace(profile, gemm=chosen)) / seconds - 1.0)
    before = np.abs(predict(ours, NODE, replace(profile, gemm=start)) / seconds - 1.0)
    assert errors.mean() < 0.005
    assert before.mean() > 0.05
    assert len(chosen.tiles) <= len(tiles) + 2
    assert 1 in chosen.splits


@pytest.mark.parametrize(("cache", "split"), [(0.5, 1.0), (1.0, 4.0)])
def test_a_librarys_ranking_is_found_again(cache: float, split: float) -> None:
    """From times of a library that prefers large tiles, or shuns splits, the same preference is found."""
    profile, ours = load_profile("a100"), batches(products())
    gemm = replace(ranked_by_times(profile.gemm), tiles=((64, 64), (64, 128), (128, 256)), splits=(1, 4))
    library = replace(gemm, ranked_cache=cache, ranked_split=split)
    seconds = predict(ours, NODE, replace(profile, gemm=library))
    chosen = chosen_in_turns(ours, seconds, gemm)
    errors, before = (np.abs(predict(ours, NODE, replace(profile, gemm=g)) / seconds - 1.0) for g in (chosen, gemm))
    assert before.mean() > 0.01
    assert errors.mean() < 0.6 * before.mean()
    assert chosen.ranked_split > 1.0 if split > 1.0 else chosen.ranked_cache < 1.0


def test_what_fits_stays() -> None:
    """Where the times are already those of the tiles and splits at hand, none is added that gains nothing."""
    profile, ours = load_profile("a100"), batches(products())
    gemm = replace(profile.gemm, tiles=((64, 64), (128, 256)), splits=(1, 4))
    seconds = predict(ours, NODE, replace(profile, gemm=gemm))
    assert with_chosen_kernels(ours, seconds, np.ones_like(seconds), NODE.device, gemm) == gemm
