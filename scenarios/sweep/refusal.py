"""What makes a point of a sweep no result but a line: input that its rules refuse, a plan that gets stuck."""

from typing import Final

from costmodels.errors import CostModelError
from scenarios.errors import ScenarioError, printable
from sim.engine.errors import DeadlockError
from sim.training.errors import SpecError

REFUSALS: Final = (ScenarioError, SpecError, CostModelError, DeadlockError)


def one_line(error: Exception) -> str:
    """Return the rule that was broken, with its key, in one line and without the remedy."""
    if isinstance(error, ScenarioError | SpecError):
        rule = f"{error.key}: {error.rule}" if error.key else error.rule
        return printable(" ".join(rule.splitlines()))
    return printable(str(error).splitlines()[0].rstrip(";"))
