"""The allocator of a training scenario: what it reserves, and what must fit."""

from scenarios.library.shipped import FOLDER
from scenarios.summaries.steps.step import StepSummary
from scenarios.workloads.loading import load_scenario

PATH = FOLDER / "papers" / "angel-ptm-gpt-29b-8-a100.yaml"


def summary_with(*overrides: str) -> StepSummary:
    """Return the summary of a shipped scenario with few layers."""
    scenario = load_scenario(PATH, ("model.num_layers=3", "memory.cached=1 GB", *overrides))
    return scenario.workload.simulate(scenario).summary


def test_what_allocators_reserve_covers_all_tensors() -> None:
    """The tensors are the same under each; pages leave less empty than chunks of sixteen times the length."""
    assert summary_with().allocator is None
    found = {name: summary_with(f"memory.allocator={name}").allocator for name in ("caching", "chunks", "pages")}
    assert len({use.live_bytes for use in found.values()}) == 1
    assert all(0 < use.fragmentation < 0.5 for use in found.values())
    assert found["pages"].fragmentation < found["chunks"].fragmentation


def test_reserved_memory_must_fit() -> None:
    """A device that holds the tensors, and not what the allocator reserves for them, does not fit."""
    use = summary_with("memory.allocator=chunks").allocator
    peak = max(role.peak_memory_bytes for role in summary_with().roles)
    assert peak < use.reserved_bytes
    reserve = f"software.memory_reserve={42412802048 - (peak + use.reserved_bytes) // 2} B"
    assert summary_with(reserve).fits_memory
    assert not summary_with(reserve, "memory.allocator=chunks").fits_memory
