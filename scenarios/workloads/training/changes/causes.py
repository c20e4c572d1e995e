"""Causes of lost time that are no choice of a strategy: slow parts, oversubscription, uneven routing; recomputation."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from scenarios.workloads.steps.findings.changes import Counterfactual
from scenarios.workloads.training.changes.recomputation import recomputing
from sim.cluster.topology.topology import Topology
from sim.training.spec.job import TrainingJob

_FABRIC: Final = "cluster.topology.fabric"
_MOST_SLOW_PARTS: Final = 4
"""Of more slow parts only all together are looked at."""


def counterfactuals_of(
    job: TrainingJob, cluster: Mapping[str, Any], topology: Topology | None
) -> Iterator[Counterfactual]:
    """Yield the causes that a scenario has, each with overrides that take it away.

    ``cluster``: the section of the file. Of several slow parts all together come first.
    """
    described = cluster.get("topology")
    described = described if isinstance(described, Mapping) else {}
    yield from _stragglers("cluster.stragglers", cluster.get("stragglers", ()), topology)
    yield from _stragglers("cluster.topology.stragglers", described.get("stragglers", ()), topology)
    yield from _oversubscription(cluster, described.get("fabric"))
    if job.model.experts is not None and job.model.experts.is_forced:
        yield Counterfactual("uneven routing of experts", ("model.experts.routing=balanced",))
    if without := recomputing(job, "none"):
        yield Counterfactual("recomputation", without)


def _stragglers(key: str, entries: Sequence[Mapping[str, Any]], topology: Topology | None) -> Iterator[Counterfactual]:
    names = [_name(entry, topology) for entry in entries]
    if len(names) > 1:
        yield Counterfactual(f"having {len(names)} slow parts", (f"{key}=[]",))
    for index, name in enumerate(names if len(names) <= _MOST_SLOW_PARTS else ()):
        others = [entry for place, entry in enumerate(entries) if place != index]
        yield Counterfactual(name, (f"{key}={json.dumps(others)}",))


def _name(entry: Mapping[str, Any], topology: Topology | None) -> str:
    """Return a slow part in words: ``slow device node 2 gpu 1 (1.15 times as long)``."""
    device, link = entry.get("device"), entry.get("link")
    if isinstance(device, int) and topology is not None:
        device = topology.vertex_name(device)
    part = f"link {link}" if device is None else f"device {device}"
    return f"slow {part} ({entry['slowdown']:g} times as long)"


def _oversubscription(cluster: Mapping[str, Any], fabric: object) -> Iterator[Counterfactual]:
    """Yield less bandwidth above switches than below them, at each level that the file states."""
    ratio = cluster.get("oversubscription", 1)
    if ratio > 1:
        yield Counterfactual(f"oversubscription of the network ({ratio:g}:1)", ("cluster.oversubscription=1",))
    for key, where in (("oversubscription", "above the leaves"), ("core_oversubscription", "above the spines")):
        ratio = fabric.get(key, 1) if isinstance(fabric, Mapping) else 1
        ratio = ratio["value"] if isinstance(ratio, Mapping) else ratio
        if ratio > 1:
            yield Counterfactual(f"oversubscription {where} ({ratio:g}:1)", (f"{_FABRIC}.{key}=1",))
