"""What real runs of layers with experts show besides the reference's numbers."""

import numpy as np

from backends.execution.result import Execution
from tests.backends.expert_runs import EXCHANGING, exchanges
from tests.backends.runs import WITHOUT


def test_some_choices_are_dropped_and_others_are_not(results: dict[str, Execution]) -> None:
    """The runs that reproduce the reference leave out choices, and not the same ones everywhere."""
    spec, microbatch_size = EXCHANGING.model.experts, EXCHANGING.training.microbatch_size
    assert spec is not None
    dropped = spec.num_experts * spec.capacity(EXCHANGING.model.sequence_length * microbatch_size)
    parts = [float(np.mean(values == dropped)) for rank in results["slots"].ranks for values in rank.values.values()]
    assert 0.0 < max(parts) < 0.6
    assert len(set(parts)) > 1


def test_every_exchange_is_left_out_in_turn(results: dict[str, Execution]) -> None:
    """Per layer two forward and two backward; without any one of them the check fails, as another test says."""
    found = list(exchanges(results["slots"].plan))
    assert len(found) == 4 * EXCHANGING.model.num_layers
    assert {task.split(".")[0] for task, _ in found} == {"forward", "backward"}
    assert {f"without all_to_all {name} (experts)" for _, name in found} <= set(WITHOUT)
