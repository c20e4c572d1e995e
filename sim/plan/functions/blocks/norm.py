"""Norms over a sharded dimension: every rank's partial sums, their all_reduce, and the norm.

Forward and backward each send one or two numbers per row (Xu et al. 2021, section 3.2.2).
"""

from typing import Any

from sim.plan.functions import basic as f
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import PARTIAL, Layout, Shard

_EPSILON = 1e-5


def shared_norm(t: TaskTracer, name: str, x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    """Return the layer norm of x over its sharded last dimension; without a bias, the RMS norm."""
    axes = x.layout.shard_axes(len(x.shape) - 1)
    parameters = (weight,) if bias is None else (weight, bias)
    attributes: dict[str, Any] = {"width": x.shape[-1] * t.mesh.degree(*axes), "epsilon": _EPSILON}
    (sums,) = t.compute(f"{name}.sums", "norm_sums", (x,), (_rows(x, axes),), centred=bias is not None)
    for axis in axes:
        sums = t.all_reduce(sums, axis)
    values = [parameter.value for parameter in parameters]
    (y,) = t.compute(name, "norm_of_sums", (x, *values, sums), (x.layout,), **attributes)
    for parameter in parameters:
        t.program.set_gradient_layout(parameter, f.summed_layout(parameter, x))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        inputs = (f.only(gradients), r.saved(x), weight.value, sums)
        (dsums,) = r.compute(
            f"{name}.backward.sums", "norm_backward_sums", inputs, (_rows(x, axes),), kind=Kind.WORKSPACE, **attributes
        )
        for axis in axes:
            dsums = r.all_reduce(dsums, axis)
        updated = [parameter.gradient for parameter in parameters]
        label, kernel = f"{name}.backward", "norm_of_sums_backward"
        return [r.compute_and_update(label, kernel, (*inputs, dsums), updated, x.layout, **attributes)]

    t.record((x,), (y,), backward)
    return y


def _rows(x: Tensor, axes: tuple[str, ...]) -> Layout:
    """Return the layout of a rank's partial sums over the rows of x."""
    rows = Layout(tuple((a, p) for a, p in x.layout.placements if p != Shard(len(x.shape) - 1)))
    for axis in axes:
        rows = rows.with_(axis, PARTIAL)
    return rows
