"""Local updates: their reference. Their runs are in ``test_other_algorithms.py``."""

import torch

from backends.torch.reference.dense import run_reference
from backends.torch.reference.local import local_updates
from tests.backends.local_runs import LOCAL

CPU = torch.device("cpu")


def test_updates_differ_from_each_other_and_from_backpropagation() -> None:
    """The first block's gradient is another one under each of the three: they are different algorithms."""
    greedy, overlapping = LOCAL["local, greedy, pp4"], LOCAL["local, overlapping, pp4"]
    gradients = [
        run_reference(greedy, 1, CPU, objective).gradients["layer0.fc1.weight"]
        for objective in (local_updates(greedy), local_updates(overlapping), None)
    ]
    for i, one in enumerate(gradients):
        for other in gradients[i + 1 :]:
            assert float((one - other).abs().max()) > 1e-3 * float(one.abs().max())


def test_last_block_learns_as_under_backpropagation_of_its_own() -> None:
    """The last block's gradients are those of the model's loss at the same weights: only its input is detached."""
    job = LOCAL["local, greedy, pp4"]
    one, other = (run_reference(job, 1, CPU, objective).gradients for objective in (local_updates(job), None))
    for name in ("layer3.qkv.weight", "final_norm.weight", "head.weight"):
        assert torch.allclose(one[name], other[name], rtol=1e-12, atol=0.0)
