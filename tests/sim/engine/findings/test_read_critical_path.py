"""The critical path read off a written timeline is the simulator's own, which knows what waited for what."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sim.engine.findings.critical_path import COPY, critical_path, kind_of
from sim.engine.findings.timeline import timeline
from sim.engine.folding.folding import fold, no_fold
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.words.op import CollectiveKind
from tests.sim.jobs import dense_plan, pricing_on
from tests.sim.topology_strategies import slow_adapters
from traces.comparison.critical_path import critical_path_s
from traces.parquet import read_timeline, write_timeline
from traces.timeline import MESSAGE_KINDS

COMMUNICATION = {*map(str, CollectiveKind), COPY, "message", "idle"}


def assert_equal_paths(run: SimulatedRun, folder: Path) -> None:
    """Fail unless both paths have the same seconds of compute, of every kind of collective and of messages."""
    write_timeline(timeline(run, "op"), folder / "timeline.parquet")
    read, known = dict[str, float](), dict[str, float]()
    for kind, spent_s in critical_path_s(read_timeline(folder / "timeline.parquet")).items():
        name = "message" if kind in MESSAGE_KINDS else kind
        read[name] = read.get(name, 0.0) + spent_s
    for step in critical_path(run).steps:
        kind = kind_of(step.op)
        name = kind if kind in COMMUNICATION else "compute"
        known[name] = known.get(name, 0.0) + step.duration_s
    assert sum(read.values()) == pytest.approx(run.makespan_s, rel=1e-9)
    for kind in {*read, *known}:
        expected_s = pytest.approx(known.get(kind, 0.0), rel=1e-6, abs=1e-12 * run.makespan_s)
        assert read.get(kind, 0.0) == expected_s, kind


PLANS: dict[str, dict[str, Any]] = {
    "data parallelism": {"dp": 3},
    "tensor parallelism": {"tp": 2, "sequence_parallel": True},
    "ZeRO 3": {"dp": 2, "zero_stage": 3, "overlap_gradient_sync": True},
    "1F1B": {"pp": 3, "tp": 2, "m": 6},
    "interleaved 1F1B": {"pp": 2, "virtual_stages": 2, "m": 4, "schedule": "interleaved_1f1b"},
    "all three, and a tied table": {"pp": 2, "tp": 2, "dp": 2, "zero_stage": 1, "overlap_gradient_sync": True},
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("chosen", [fold, no_fold])
@pytest.mark.parametrize("node", ["dgx-a100-80g", "cloud-a100-100g"])
def test_path_of_a_file_is_that_of_the_engine(tmp_path: Path, name: str, chosen: Any, node: str) -> None:
    """Pipelines, tensor and data parallelism, folded or not: the path goes from rank to rank as the step did."""
    plan = dense_plan(**PLANS[name])
    run = simulate(plan, pricing_on(node, plan.mesh.size, devices_per_node=2), fold=chosen)
    assert_equal_paths(run, tmp_path)


@pytest.mark.parametrize("name", ["tensor parallelism", "1F1B"])
def test_path_of_a_file_is_that_of_the_engine_where_a_step_takes_a_day(tmp_path: Path, name: str) -> None:
    """Kernels are a billionth of such a step, and still they are on the path for as long as they last."""
    plan = dense_plan(**PLANS[name])
    run = simulate(plan, slow_adapters(plan.mesh.size))
    assert run.makespan_s > 86_400
    assert_equal_paths(run, tmp_path)


def test_without_what_belongs_together_the_path_stays_on_its_rank(tmp_path: Path) -> None:
    """The same rows without the column lead the path through a rank's waiting: it is what tells the ranks apart."""
    plan = dense_plan(**PLANS["1F1B"])
    run = simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size))
    write_timeline(timeline(run, "op"), tmp_path / "timeline.parquet")
    table = pq.read_table(tmp_path / "timeline.parquet")
    nothing = pa.array(np.full(len(table), -1))
    column = table.column_names.index("transfer")
    pq.write_table(table.set_column(column, "transfer", nothing), tmp_path / "timeline.parquet")
    alone = critical_path_s(read_timeline(tmp_path / "timeline.parquet"))
    assert alone["idle"] > 0.05 * run.makespan_s
    assert critical_path_s(timeline(run, "op")).get("idle", 0.0) < 1e-9 * run.makespan_s
