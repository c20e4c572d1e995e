"""The comparison of a click model's executed steps with plain torch on whole tables."""

from collections.abc import Mapping

import torch
from torch import Tensor

from backends.execution.clicks import ClickCheck
from backends.execution.result import CheckReport, RankResult
from backends.torch.reference.check import TOLERANCES
from backends.torch.reference.click_models import ClickTraining, errors_of
from backends.torch.running.state import persistent_slots
from sim.embedding.rank_batch import RankBatch, tables_of_ranks


def check_clicks(check: ClickCheck) -> CheckReport:
    """Return the largest errors of the last step's loss and gradients, and of layers and rows after it."""
    step, plan = check.step, check.last.plan
    slots = persistent_slots(plan, 0, torch.device("cpu"))
    initial = {
        name: slot.tensor for name, slot in slots.items() if f"{name}.gradient" in slots and slot.tensor is not None
    }
    training = ClickTraining(
        model=step.model, tables=check.tables, order=_order(check), batch_size=step.batch_size, seed=step.seed,
        learning_rate=step.learning_rate,
    )  # fmt: skip
    reference = training.after(check.ids, initial)
    states = [_state(rank) for rank in check.last.ranks]
    rows = _all_rows(check, states, torch.full_like(reference.rows, torch.nan))
    loss = torch.stack([state["loss"] for state in states]).sum()
    found = [errors_of(reference, state, rows, loss) for state in states]
    worst = {name: max(errors[name] for errors in found) for name in found[0]}
    return CheckReport(worst, TOLERANCES["fp64" if step.dtype == "float64" else "fp32"])


def _order(check: ClickCheck) -> list[int]:
    """Return the order in which the model has the tables' vectors: rank after rank."""
    if check.step.sharding == "table" and check.step.is_shared:
        return [place for places in tables_of_ranks(check.tables, check.step.num_ranks) for place in places]
    return list(range(len(check.tables)))


def _state(rank: RankResult) -> Mapping[str, Tensor]:
    return {name: torch.from_numpy(value) for (name, _), value in rank.values.items()}


def _all_rows(check: ClickCheck, states: list[Mapping[str, Tensor]], rows: Tensor) -> Tensor:
    """Return ``rows``, filled with those of all ranks."""
    width = check.step.width
    for rank, state in enumerate(states):
        part = check.parts[rank] if len(check.parts) > 1 else check.parts[0]
        columns = slice(rank * width, (rank + 1) * width) if check.step.sharding == "column" else slice(None)
        rows[torch.from_numpy(part.owned), columns] = _own_rows(part, state)
    return rows


def _own_rows(part: RankBatch, state: Mapping[str, Tensor]) -> Tensor:
    """Return a rank's rows after a step: those in its cache, by the maps on the device, the others on its host."""
    if part.found is None:
        return state["rows_on_device"]
    rows, slot_of_row = state["rows_on_host"].clone(), state["maps"][: part.num_rows].long()
    is_cached = slot_of_row >= 0
    rows[is_cached] = state["rows_on_device"][slot_of_row[is_cached]]
    return rows
