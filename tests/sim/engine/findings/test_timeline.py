"""Timelines of simulated runs, in rows of ops and in rows of tasks."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.parse import parse_topology
from sim.engine.findings.timeline import timeline
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from tests.sim.jobs import dense_plan
from traces.perfetto import write_perfetto
from traces.timeline import COLLECTIVE_KINDS


@pytest.fixture(scope="module")
def slow_device() -> SimulatedRun:
    """Return a step in which one device is slow, so that tensor-parallel collectives join several simulated ranks."""
    slow = {"nodes": "hgx-h100", "fabric": {"kind": "switch"}, "stragglers": [{"device": 3, "slowdown": 1.5}]}
    node = load_node("hgx-h100")
    cluster = Cluster(node, 4, 8, parse_topology(slow, 4))
    plan = dense_plan(tp=8, pp=2, dp=2, m=8, sequence_parallel=True)
    return simulate(plan, ClusterPricing(cluster, load_profile(node.device.generation)))


@pytest.mark.parametrize("detail", ["op", "task"])
def test_links_join_rows_of_messages_and_of_collectives_only(slow_device: SimulatedRun, detail: Any) -> None:
    """A message has the rows of its send and receive, a collective one row of each of several ranks; what a row of a
    whole task hides is in neither."""
    table = timeline(slow_device, detail)
    assert {table.kind.at(row) for row in table.messages.send} == {"send"}
    assert {table.kind.at(row) for row in table.messages.recv} == {"recv"}
    assert {table.kind.at(row) for row in table.messages.member} <= set(COLLECTIVE_KINDS)
    for number in np.unique(table.messages.collective):
        members = table.messages.member[table.messages.collective == number]
        assert len(set(table.rank[members].tolist())) == len(members) > 1


def test_a_file_with_more_arrows_than_rows_is_written_whole(slow_device: SimulatedRun, tmp_path: Path) -> None:
    """Every arrow of every message and collective is in the file, however few rows the timeline has."""
    table = timeline(slow_device, "task")
    write_perfetto(table, tmp_path / "timeline.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "timeline.json.gz").read_bytes()))["traceEvents"]
    arrows: dict[int, list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            arrows[event["id"]].append(event["name"])
    messages = [names for names in arrows.values() if names == ["message"] * 2]
    assert len(messages) == len(table.messages.send)
    assert len(arrows) - len(messages) == len(np.unique(table.messages.collective))
