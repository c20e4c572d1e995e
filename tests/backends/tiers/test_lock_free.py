"""The optimizer in a thread: nothing is lost, whatever dies; with a staleness of 0 it is plain Adam."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backends.torch.tiers.lock_free import AdamNumbers, LockFreeOptimizer, UpdateError, state_sizes
from backends.torch.tiers.page_file import PageFile, PageFileError

UNITS = {"embedding": 700, "layer0": 300, "layer1": 5}
ADAM = AdamNumbers(learning_rate=0.01, beta1=0.9, beta2=0.99, epsilon=1e-8)


def initial() -> dict[str, Tensor]:
    """Return parameters of whole numbers, whose sums are exact."""
    return {unit: torch.arange(size, dtype=torch.float64) for unit, size in UNITS.items()}


def gradient(unit: str, iteration: int) -> Tensor:
    """Return a gradient of whole numbers."""
    return torch.arange(UNITS[unit], dtype=torch.float64) % 7 + iteration


def sums(state: list[Tensor], gradient: Tensor, step: int) -> list[Tensor]:
    """Subtract gradients; the first moment counts the updates."""
    return [state[0] - gradient, state[1] + 1, torch.full_like(state[2], step)]


def optimizer(folder: Path, rule: Callable[..., list[Tensor]] = sums, **options) -> LockFreeOptimizer:
    """Return an optimizer whose state lies in pages of 1 KiB."""
    return LockFreeOptimizer(initial(), rule, PageFile(folder / "pages", state_sizes(initial()), 1024), **options)


def train(lock_free: LockFreeOptimizer, iterations: int) -> None:
    """Add the gradients of some iterations, each once it may begin."""
    for iteration in range(iterations):
        lock_free.wait(iteration)
        if lock_free.max_staleness is not None:
            assert lock_free.account.staleness(iteration) <= lock_free.max_staleness
        for unit in UNITS:
            lock_free.add(unit, gradient(unit, iteration))


def applied_and_pending(lock_free: LockFreeOptimizer, published: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum of the gradients that are applied or wait."""
    return {unit: x - published[unit] + lock_free.pending(unit) for unit, x in initial().items()}


def made(iterations: int) -> dict[str, Tensor]:
    """Return the sum of all gradients."""
    return {unit: torch.stack([gradient(unit, k) for k in range(iterations)]).sum(0) for unit in UNITS}


@pytest.mark.parametrize("max_staleness", [0, 2, None])
def test_every_gradient_is_applied_once(tmp_path: Path, max_staleness: int | None) -> None:
    """Sums of applied gradients are those made; no iteration begins with parameters that lack more than the bound."""
    with optimizer(tmp_path, max_staleness=max_staleness) as lock_free:
        train(lock_free, 12)
        published = lock_free.settle().parameters
    for unit in UNITS:
        assert sum(update.num_gradients for update in lock_free.updates if update.unit == unit) == 12
    for unit, expected in made(12).items():
        assert torch.equal(initial()[unit] - published[unit], expected)


def test_without_staleness_it_is_adam(tmp_path: Path) -> None:
    """With max_staleness 0 each iteration finds every update before it; moments are sums in closed form."""
    gradients: dict[str, list[Tensor]] = {unit: [] for unit in UNITS}
    weights = initial()
    with optimizer(tmp_path, ADAM.updated, max_staleness=0) as lock_free:
        for iteration in range(6):
            published = lock_free.wait(iteration).parameters
            for unit, seen in gradients.items():
                assert torch.allclose(published[unit], weights[unit], rtol=0, atol=1e-12)
                seen.append(torch.sin(published[unit]))
                lock_free.add(unit, seen[-1])
                weights[unit] = weights[unit] - adam_step(seen)


def adam_step(gradients: list[Tensor]) -> Tensor:
    """Return the change of Adam's last update (Kingma and Ba 2015), from all gradients so far."""
    t = len(gradients)
    first, second = (
        sum((1 - beta) * beta ** (t - 1 - i) * g**power for i, g in enumerate(gradients)) / (1 - beta**t)
        for beta, power in ((ADAM.beta1, 1), (ADAM.beta2, 2))
    )
    return ADAM.learning_rate * first / (second**0.5 + ADAM.epsilon)


@pytest.mark.parametrize("fault", ["update", "gone", "cut"])
def test_a_dying_thread_loses_no_gradient(tmp_path: Path, fault: str) -> None:
    """The training gets a clear error; what is applied and what waits is what was made, and another thread goes on."""
    path, failing = tmp_path / "pages", [True]
    count = 0

    def fail(unit: str) -> None:
        nonlocal count
        count += 1
        if failing and count == 5:
            if fault == "update":
                raise MemoryError("no memory")
            (tmp_path / "kept").hardlink_to(path)
            if fault == "gone":
                path.unlink()
            else:  # at once: another thread may read it meanwhile
                (tmp_path / "short").write_bytes(bytes(1500))
                (tmp_path / "short").replace(path)

    lock_free = optimizer(tmp_path, on_update=fail, max_staleness=1)
    lock_free.resume()
    with pytest.raises(UpdateError, match={"update": "no memory", "gone": "is gone", "cut": "is cut"}[fault]):
        train(lock_free, 50)
    iteration = lock_free.account.num_made["layer1"]
    failing.clear()
    lock_free._thread.join()
    for unit, total in applied_and_pending(lock_free, lock_free._published).items():
        assert torch.equal(total, made(iteration)[unit])
    if fault != "update":
        (tmp_path / "kept").rename(path)
    with lock_free:
        published = lock_free.settle().parameters
    for unit, expected in made(iteration).items():
        assert torch.equal(initial()[unit] - published[unit], expected)


def test_a_full_disk_is_refused_before_the_training(tmp_path: Path) -> None:
    """The error states the folder and the bytes, and leaves no file."""
    with pytest.raises(PageFileError, match=r"no room for 1,152,.* bytes of pages"):
        PageFile(tmp_path / "pages", {"x": 2**57}, page_bytes=2**50)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_already_is_refused_and_kept(tmp_path: Path) -> None:
    """Nobody else's file is written over or removed."""
    path = tmp_path / "pages"
    path.write_text("another's", encoding="utf-8")
    with pytest.raises(PageFileError, match="cannot be made: File exists"):
        PageFile(path, {"x": 4})
    assert path.read_text(encoding="utf-8") == "another's"
