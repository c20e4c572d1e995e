"""The laws of ``scenario_laws`` over random scenarios: 24 here, more by hand (MESHTWIN_LAW_SEEDS=1000-1399)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from costmodels.software import Software
from scenarios.workloads.steps.running import SimulatedStep
from sim.engine.running.simulate import simulate
from sim.plan.words.program import Program
from tests.laws import anomalies, scenario_laws
from tests.laws.anomalies import ANOMALIES
from tests.laws.random_scenarios import load
from tests.laws.scenario_laws import LAWS, Case, Timed

SEEDS = os.environ.get("MESHTWIN_LAW_SEEDS", "24-47")
"""Every schedule once: of the first seven such ranges the one whose plans have the fewest ops."""


def seeds() -> range:
    """Return the seeds to try: the first and the last of the environment's variable."""
    first, _, last = SEEDS.partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the actions of custom schedules are written."""
    return tmp_path_factory.mktemp("scenarios")


@pytest.mark.parametrize("seed", seeds())
def test_a_random_scenario_keeps_all_laws(folder: Path, seed: int) -> None:
    """Each violation has the name of its law; ``random_scenario(seed, folder)`` is the scenario."""
    case = Case.of(seed, folder)
    violations = [f"{name}: {words}" for name, law in LAWS.items() for words in law(case)]
    assert violations == []


# --- the laws see what breaks them ---------------------------------------------------------------------------------

PLAIN = {
    "name": "plain", "cluster": {"node": "hgx-h100", "num_nodes": 1, "devices_per_node": 4},
    "model": {"family": "llama", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "sequence_length": 32,
              "vocab_size": 64, "ffn_hidden_size": 96},
    "training": {"global_batch_size": 8, "microbatch_size": 1, "precision": "bf16"},
    "parallel": {"tensor": {"degree": 2}, "data": {"degree": 2}, "axis_order": ["dp", "pp", "cp", "tp"]},
    "software": {"launch": "1 us"},
}  # fmt: skip


def plain_case(folder: Path, **keys: Any) -> Case:
    """Return a case that keeps all laws; ``keys``: what of it is known already, and may be wrong."""
    case = Case(0, PLAIN, load(PLAIN, folder), folder, is_drawn=True)
    case.__dict__.update(keys)
    return case


def with_summary(case: Case, **keys: Any) -> SimulatedStep:
    """Return the case's result with other values in its summary."""
    return structs.replace(case.result, summary=structs.replace(case.result.summary, **keys))


def test_a_plain_scenario_keeps_all_laws(folder: Path) -> None:
    """The case of the tests below breaks no law by itself."""
    assert [(name, list(law(plain_case(folder)))) for name, law in LAWS.items()] == [(name, []) for name in LAWS]


@pytest.mark.parametrize(
    ("law", "factor"),
    [("faster_links", 0.5), ("faster_nvlink", 0.5), ("framework_costs", 0.5), ("larger_batches", 0.2),
     ("larger_batches", 9.0), ("slower_devices", 9.0), ("more_replicas", 9.0), ("one_device_per_node", 9.0)],
)  # fmt: skip
def test_laws_of_time_see_a_wrong_time(folder: Path, law: str, factor: float) -> None:
    """A step that is shorter, or longer, by a factor breaks each law that compares it."""
    right = plain_case(folder).time
    case = plain_case(folder, time=Timed(right.seconds * factor, right.shares))
    assert list(LAWS[law](case)) != []


@pytest.mark.parametrize(
    ("law", "summary"),
    [("interval", {"iteration_time_s": 1e-9}), ("interval", {"iteration_time_s": 1e9}), ("shares", {"mfu": 0.9}),
     ("shares", {"iteration_time_s": 1.0}), ("shares", {"critical_path_s": {}}), ("determinism", {"world_size": 5})],
)  # fmt: skip
def test_laws_of_one_result_see_a_wrong_summary(folder: Path, law: str, summary: dict[str, Any]) -> None:
    """One wrong value breaks each law that reads it."""
    case = plain_case(folder)
    assert list(LAWS[law](plain_case(folder, result=with_summary(case, **summary)))) != []


def test_folding_sees_other_times(folder: Path) -> None:
    """A folded run under other prices is not that of all ranks."""
    case = plain_case(folder)
    other = simulate(case.plan, case.pricing.under(Software()))
    assert list(LAWS["folding"](plain_case(folder, result=structs.replace(case.result, run=other)))) != []


@pytest.mark.parametrize(
    ("law", "peak"),
    [
        ("zero_stages", lambda program: 10**9 + 10**9 * sum(name.startswith("gradient_") for name in program.buffers)),
        (
            "recomputation",
            lambda program: 10**9 + 10**9 * sum(name.endswith(".recomputed") for name in program.buffers),
        ),
        ("memory_holds_states", lambda _: 1),
    ],
)
def test_laws_of_memory_see_a_wrong_peak(
    folder: Path, monkeypatch: pytest.MonkeyPatch, law: str, peak: Callable[[Program], int]
) -> None:
    """Memory that grows with what should save it, or is too little, breaks each law of memory."""
    monkeypatch.setattr(scenario_laws, "peak_bytes", peak)
    assert list(LAWS[law](plain_case(folder))) != []


def test_anomalies_name_laws_and_bounds() -> None:
    """Each has a reason, laws that there are, and one bound: a number, or a function of that name."""
    assert {law for anomaly in ANOMALIES.values() for law in anomaly.laws} <= LAWS.keys()
    for anomaly in ANOMALIES.values():
        assert len(anomaly.reason) > 50
        assert (anomaly.bound > 0) != callable(getattr(anomalies, anomaly.bounded_by, None))
