"""The dense reference and the comparison with it."""

from math import inf, log

import pytest
import torch

from backends.execution.result import CheckReport
from backends.torch.reference.check import relative_error
from backends.torch.reference.dense import parameter_shapes, run_reference
from tests.backends.jobs import GPT, LLAMA, training

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_reference_has_as_many_parameters_as_the_model(model: dict[str, object], tied: bool) -> None:
    """Its shapes add up to the count of the specification, tied embeddings counted once."""
    job = training(model={**model, "tied_embeddings": tied})
    shapes = parameter_shapes(job.model)
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == job.model.num_parameters


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_untrained_loss_is_near_that_of_guessing(model: dict[str, object]) -> None:
    """With weights of 0.02 every token is about equally likely: log V."""
    job = training(model=model, batch=(1, 1))
    loss = run_reference(job, 1, CPU).loss
    assert float(loss) == pytest.approx(log(job.model.vocab_size), rel=0.02)


def test_training_moves_every_parameter_and_seeds_differ() -> None:
    """Two steps of Adam change every tensor; what one step did is not what two did."""
    one, two = (run_reference(training(batch=(1, 1)), steps, CPU) for steps in (1, 2))
    for name, value in one.parameters.items():
        assert not torch.equal(value, two.parameters[name]), name
    assert float(one.loss) != float(two.loss)


def test_relative_error_is_relative_to_the_largest_element() -> None:
    """A difference of 0.5 against a largest magnitude of 4."""
    expected = torch.tensor([1.0, -4.0])
    assert relative_error(expected + torch.tensor([0.5, 0.0]), expected) == 0.125
    assert relative_error(expected, expected) == 0.0


def test_relative_error_cannot_be_fooled_by_nothing() -> None:
    """NaN and anything against zeros are infinitely wrong; zeros against zeros are right; ignored is ignored."""
    zeros, broken = torch.zeros(2), torch.tensor([0.0, float("nan")])
    assert relative_error(broken, torch.ones(2)) == inf
    assert relative_error(torch.tensor([0.0, 1e-30]), zeros) == inf
    assert relative_error(zeros, zeros) == 0.0
    assert relative_error(torch.tensor([1.0, 3.0]), torch.ones(2), torch.tensor([False, True])) == 0.0


def test_report_passes_only_where_all_errors_are_within_the_tolerance() -> None:
    """The worst tensor is named; infinity does not pass."""
    assert CheckReport({"a": 1e-12, "b": 1e-9}, 1e-9).passed
    bad = CheckReport({"a": inf, "b": 0.0}, 1e-9)
    assert not bad.passed
    assert bad.worst == ("a", inf)
