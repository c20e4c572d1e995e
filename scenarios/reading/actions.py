"""Read a pipeline schedule from a CSV of actions."""

from pathlib import Path
from typing import Final

from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents.text_file import read_text
from sim.training.pipeline.actions import ActionError, parse_orders
from sim.training.pipeline.rules import Actions

ACTIONS_HINT: Final = "write one row of actions per rank, as in 0F0,0B0"


def read_actions(path: Path) -> Actions:
    """Return every rank's actions. Raises ScenarioError, with file and row, for what is no action."""
    text = read_text(path, ACTIONS_HINT)
    try:
        return tuple(tuple(order) for order in parse_orders(text))
    except ActionError as error:
        remedy = "write stage, F, B, I or W, and micro-batch, as in 2F0"
        raise ScenarioError(Origin(str(path), error.row), "", str(error), remedy) from error
