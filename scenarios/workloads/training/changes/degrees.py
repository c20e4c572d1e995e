"""Overrides of parallel degrees. Data parallelism takes the ranks that remain."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scenarios.workloads.steps.findings.changes import BUBBLE, COMPUTING, Change, Overrides
from sim.training.spec.job import ParallelSpec

_AXES: Final = ("tensor", "context", "pipeline")


def with_degrees(parallel: ParallelSpec, written: Mapping[str, Any], **degrees: int) -> Overrides:
    """Return overrides of degrees, and of data parallelism the rest.

    ``written``: the section ``parallel`` of the file, where another degree than that of data may be ``auto``.
    """
    now = _degrees(parallel)
    stated = [axis for axis in _AXES if axis in degrees or _is_auto(written.get(axis))]
    return (
        *(f"parallel.{axis}.degree={degrees.get(axis, now[axis])}" for axis in stated),
        *(_for_one_tensor_rank(parallel) if degrees.get("tensor") == 1 else ()),
        "parallel.data.degree=auto",
    )


def _degrees(parallel: ParallelSpec) -> dict[str, int]:
    return {
        "tensor": parallel.tensor.degree, "context": parallel.context_degree, "pipeline": parallel.pipeline.degree
    }  # fmt: skip


def _is_auto(section: object) -> bool:
    return isinstance(section, Mapping) and section.get("degree") == "auto"


def _for_one_tensor_rank(parallel: ParallelSpec) -> Overrides:
    """Return what one rank without others for tensor parallelism cannot have, switched off."""
    off = []
    if parallel.tensor.splits_products:
        off.append("parallel.tensor.collective_matmul=false")
    if parallel.tensor.cuts_residual:
        off.append("parallel.tensor.sequence_parallel=false")
    return tuple(off)


def degree_changes(parallel: ParallelSpec, written: Mapping[str, Any]) -> Iterator[Change]:
    """Yield half and twice of each degree, and degrees of two axes exchanged."""
    now = _degrees(parallel)
    half_helps = {
        "tensor": {"tp": 0.5, COMPUTING: 0.05}, "context": {"cp": 0.6, "tp": 0.1}, "pipeline": {BUBBLE: 0.5, "pp": 0.5}
    }  # fmt: skip
    twice_helps = {"tensor": {BUBBLE: 0.3, "dp": 0.3}, "context": {BUBBLE: 0.2}, "pipeline": {"dp": 0.3, "tp": 0.01}}
    for axis in _AXES:
        if now[axis] % 2 == 0:
            for overrides in resized(parallel, written, **{axis: now[axis] // 2}):
                yield Change(overrides, half_helps[axis])
        for overrides in resized(parallel, written, **{axis: 2 * now[axis]}):
            yield Change(overrides, twice_helps[axis])
    for fewer, more, helps in (("tensor", "pipeline", {"tp": 0.4}), ("pipeline", "tensor", {BUBBLE: 0.4})):
        if now[fewer] % 2 == 0:
            for overrides in resized(parallel, written, **{fewer: now[fewer] // 2, more: 2 * now[more]}):
                yield Change(overrides, helps)
    experts = parallel.expert_degree
    if experts > 1:
        if experts % 2 == 0:
            yield Change((f"parallel.expert.degree={experts // 2}",), {"ep": 0.4})
        yield Change((f"parallel.expert.degree={2 * experts}",), {"dp": 0.2})


def resized(parallel: ParallelSpec, written: Mapping[str, Any], **degrees: int) -> Iterator[Overrides]:
    """Yield degrees with the virtual stages that they leave: as many per rank, or as many in all."""
    overrides, pipeline = with_degrees(parallel, written, **degrees), parallel.pipeline
    ranks, stages = degrees.get("pipeline", pipeline.degree), pipeline.virtual_stages
    if ranks == pipeline.degree:
        yield overrides
        return
    if ranks > 1:
        yield overrides
    kept, rest = divmod(pipeline.num_virtual_stages, ranks)
    if ranks == 1 or (kept == 1 and stages > 1):
        alone = () if pipeline.schedule == "1f1b" else ("parallel.pipeline.schedule=1f1b",)
        yield (*overrides, *alone, *(("parallel.pipeline.virtual_stages=1",) if stages > 1 else ()))
    elif stages > 1 and not rest:
        yield (*overrides, f"parallel.pipeline.virtual_stages={kept}")
