"""Norms, activations, dropout, additions, rotary positions and changes of shape."""

from collections.abc import Mapping, Sequence
from math import pi, sqrt
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import DTYPES, Attributes, KernelContext, KernelFunction, rows_of, wide
from backends.torch.values.randomness import dropout_key, kept_by_dropout

# --- dropout -----------------------------------------------------------------------------------------------


def _mask(context: KernelContext, x: Tensor, attributes: Attributes) -> Tensor:
    """Return this rank's slice of the global mask, uint8, 1 where an element is kept."""
    batch_dim, axes = attributes["batch_dim"], attributes["axes"]
    starts, dealt = attributes.get("starts", (0,) * x.dim()), attributes.get("dealt_over", ("",) * x.dim())
    places = [
        context.positions(*dim[:2], start=dim[2], dealt_over=dim[3])
        for dim in zip(x.shape, axes, starts, dealt, strict=True)
    ]
    return kept_by_dropout(
        dropout_key(context.rank.seed, context.rank.step, attributes["salt"]),
        attributes["shape"],
        places,
        batch_dim=batch_dim,
        first_sample=context.first_sample(x.shape[batch_dim], attributes.get("batch_axes", ())),
        probability=attributes["probability"],
    )


def _dropped(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    return x * (mask.to(x.dtype) * (1.0 / (1.0 - probability)))


def dropout(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x with some elements dropped and the others scaled up, and the mask."""
    (x,) = inputs
    mask = _mask(context, x, attributes)
    return _dropped(x, mask, attributes["probability"]), mask


def dropout_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dy with the same elements dropped."""
    dy, mask = inputs
    return (_dropped(dy, mask, attributes["probability"]),)


def bias_dropout_add(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return residual + dropout(x + bias). If the probability is not 0, return the mask too."""
    x, bias, residual = inputs
    biased = x + bias
    if not attributes["probability"]:
        return (residual + biased,)
    mask = _mask(context, x, attributes)
    return residual + _dropped(biased, mask, attributes["probability"]), mask


def bias_gradient(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the sum of dx over all but the bias's dimensions, added to the bias's gradient if there is one."""
    dx, *given = inputs
    if not given:
        return (dx.flatten(0, -1 - attributes["dims"]).sum(0),)
    (gradient,) = given
    gradient += dx.reshape(-1, *gradient.shape).sum(0, dtype=gradient.dtype)
    return (gradient,)


# --- norms -------------------------------------------------------------------------------------------------


def layer_norm(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the layer norm over the last dimension, its mean and its reciprocal standard deviation."""
    x, weight, bias = inputs
    rows = wide(x)
    mean = rows.mean(-1)
    centred = rows - mean.unsqueeze(-1)
    rstd = torch.rsqrt(centred.square().mean(-1) + attributes["epsilon"])
    y = centred * rstd.unsqueeze(-1) * wide(weight) + wide(bias)
    return y.to(x.dtype), mean, rstd


def layer_norm_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dx, and the gradients of weight and bias, added to the given ones if there are any."""
    dy, x, weight, mean, rstd, *given = inputs
    normed = (wide(x) - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    dys = wide(dy)
    dnormed = dys * wide(weight)
    projected = normed * (dnormed * normed).mean(-1, keepdim=True)
    dx = (dnormed - dnormed.mean(-1, keepdim=True) - projected) * rstd.unsqueeze(-1)
    sums = [terms.flatten(0, -2).sum(0) for terms in (dys * normed, dys)]
    return dx.to(x.dtype), *_accumulated(given, sums, weight)


def rms_norm(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the RMS norm over the last dimension, and the reciprocal root mean square."""
    x, weight = inputs
    rows = wide(x)
    rstd = torch.rsqrt(rows.square().mean(-1) + attributes["epsilon"])
    return (rows * rstd.unsqueeze(-1) * wide(weight)).to(x.dtype), rstd


def rms_norm_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dx, and the gradient of the weight, added to the given one if there is one."""
    dy, x, weight, rstd, *given = inputs
    normed, dys = wide(x) * rstd.unsqueeze(-1), wide(dy)
    dnormed = dys * wide(weight)
    dx = (dnormed - normed * (dnormed * normed).mean(-1, keepdim=True)) * rstd.unsqueeze(-1)
    return dx.to(x.dtype), *_accumulated(given, [(dys * normed).flatten(0, -2).sum(0)], weight)


def _accumulated(given: Sequence[Tensor], terms: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    """Return the given gradients with the terms added; without given gradients, the terms in the weight's type."""
    if not given:
        return [term.to(weight.dtype) for term in terms]
    return [gradient.add_(term) for gradient, term in zip(given, terms, strict=True)]


# --- activations -------------------------------------------------------------------------------------------

_GELU_SLOPE: Final = sqrt(2.0 / pi)
_GELU_CUBE: Final = 0.044715


def gelu(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return GELU in its tanh approximation (Hendrycks and Gimpel 2016)."""
    return (_gelu(wide(inputs[0]))[0].to(inputs[0].dtype),)


def gelu_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dy times the derivative of the tanh approximation at x."""
    return ((wide(inputs[0]) * _gelu(wide(inputs[1]))[1]).to(inputs[1].dtype),)


def _gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return GELU in its tanh approximation, and its derivative."""
    inner = torch.tanh(_GELU_SLOPE * (x + _GELU_CUBE * x**3))
    slope = _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBE * x**2)
    return 0.5 * x * (1.0 + inner), 0.5 * (1.0 + inner) + 0.5 * x * (1.0 - inner**2) * slope


def swiglu(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return silu(x[:, :, 0]) x[:, :, 1] (Shazeer 2020)."""
    gate, value = wide(inputs[0]).unbind(2)
    return ((gate * torch.sigmoid(gate) * value).to(inputs[0].dtype),)


def swiglu_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of gate and value, stacked as x is."""
    dy = wide(inputs[0])
    gate, value = wide(inputs[1]).unbind(2)
    sigmoid = torch.sigmoid(gate)
    dgate = dy * value * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    return (torch.stack((dgate, dy * gate * sigmoid), 2).to(inputs[1].dtype),)


def geglu(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return gelu(x[:, :, 0]) x[:, :, 1] (Shazeer 2020)."""
    gate, value = wide(inputs[0]).unbind(2)
    return ((_gelu(gate)[0] * value).to(inputs[0].dtype),)


def geglu_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of gate and value, stacked as x is."""
    dy = wide(inputs[0])
    gate, value = wide(inputs[1]).unbind(2)
    activated, derivative = _gelu(gate)
    return (torch.stack((dy * value * derivative, dy * activated), 2).to(inputs[1].dtype),)


def soft_cap(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return cap tanh(x / cap), which stays below the cap (Gemma Team 2024, Gemma 2)."""
    return ((attributes["cap"] * torch.tanh(wide(inputs[0]) / attributes["cap"])).to(inputs[0].dtype),)


def soft_cap_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dy times the derivative of the capped x."""
    dy, x = wide(inputs[0]), wide(inputs[1])
    return ((dy * (1.0 - torch.tanh(x / attributes["cap"]) ** 2)).to(inputs[1].dtype),)


def scaled(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return a new tensor, factor times x."""
    return (inputs[0] * attributes["factor"],)


# --- positions and shapes ----------------------------------------------------------------------------------


def _turned(context: KernelContext, x: Tensor, attributes: Attributes, sign: float) -> Tensor:
    """Return x[s, b, n, d] with each pair (i, i + d/2) rotated by the angle sign x position x base^(-2i/d).

    With ``width``, only the last ``width`` channels of a head are rotated, and d is ``width``.
    """
    width = attributes.get("width", x.shape[-1])
    half, still = width // 2, x.shape[-1] - width
    values = wide(x[..., still:])
    powers = torch.arange(half, dtype=values.dtype, device=x.device) / half
    positions = context.positions(x.shape[0], **rows_of(attributes)).to(values.dtype)
    angles = (positions[:, None] * attributes["base"] ** -powers)[:, None, None, :]
    cosine, sine = torch.cos(angles), sign * torch.sin(angles)
    first, second = values[..., :half], values[..., half:]
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(x.dtype)
    return torch.cat((x[..., :still], turned), -1) if still else turned


def rotary(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x with rotary position embedding (Su et al. 2021; pairs of channels as in Llama)."""
    return (_turned(context, inputs[0], attributes, 1.0),)


def rotary_backward(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dy rotated by the negative angles."""
    return (_turned(context, inputs[0], attributes, -1.0),)


def split_qkv(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return q, k and v of qkv[s, b, g, r+2, d]: r query heads, a key and a value per group."""
    (qkv,) = inputs
    q, k, v = qkv[:, :, :, :-2], qkv[:, :, :, -2], qkv[:, :, :, -1]
    return q.clone(memory_format=torch.contiguous_format).flatten(2, 3), *(
        x.clone(memory_format=torch.contiguous_format) for x in (k, v)
    )


def merge_qkv(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dq, dk and dv laid out as qkv is."""
    dq, dk, dv = inputs
    s, b, groups, d = dk.shape
    return (torch.cat((dq.reshape(s, b, groups, -1, d), dk.unsqueeze(3), dv.unsqueeze(3)), 3),)


def add(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the sum of all inputs, rounded once."""
    if len(inputs) == 2:
        return (inputs[0] + inputs[1],)
    return (torch.stack([wide(x) for x in inputs]).sum(0).to(inputs[0].dtype),)


def append(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Write the rows of x into their places of a cache; return the cache, a new one if none is given.

    In a cache of eight bits what is larger than the largest number becomes that number.
    """
    x, *given = inputs
    dtype = DTYPES[attributes["dtype"]] if "dtype" in attributes else x.dtype
    cache = given[0] if given else x.new_empty((attributes["rows"], *x.shape[1:]), dtype=dtype)
    if cache.dtype.itemsize == 1:
        most = torch.finfo(cache.dtype).max
        x = x.clamp(-most, most)
    places, start = attributes["places"], 0
    for first, count in places:
        cache[first : first + count] = x[start : start + count]
        start += count
    return (cache,)


def take_rows(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the rows of x with these numbers."""
    return (inputs[0][list(attributes["rows"])],)


def rows(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return ``count`` rows of x from ``start`` on."""
    piece = inputs[0].narrow(0, attributes["start"], attributes["count"])
    return (piece.clone(memory_format=torch.contiguous_format),)


def take_chunks(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x with its equal chunks of rows in the stated order."""
    chunks = inputs[0].chunk(len(attributes["order"]))
    return (torch.cat([chunks[number] for number in attributes["order"]]),)


def slice_(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return this rank's piece of x along a dimension."""
    (x,), dim = inputs, attributes["dim"]
    size = x.shape[dim] // attributes["parts"]
    piece = x.narrow(dim, context.index(attributes["axes"]) * size, size)
    return (piece.clone(memory_format=torch.contiguous_format),)


def zero(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Clear all buffers."""
    return tuple(x.zero_() for x in inputs)


def scale(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Multiply all buffers by ``factor``."""
    return tuple(x.mul_(attributes["factor"]) for x in inputs)


def squared_norm(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the sum of the squares of all elements."""
    return (torch.stack([wide(x).square().sum() for x in inputs]).sum().reshape(1),)


def zeros(context: KernelContext, _inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return new buffers of zeros."""
    dtype, device = DTYPES[attributes["dtype"]], context.rank.device
    return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape in attributes["shapes"])


def copy(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Write the first tensor over the second."""
    source, target = inputs
    return (target.copy_(source),)


ELEMENTWISE_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "dropout": dropout,
        "dropout_backward": dropout_backward,
        "bias_dropout_add": bias_dropout_add,
        "bias_gradient": bias_gradient,
        "layer_norm": layer_norm,
        "layer_norm_backward": layer_norm_backward,
        "rms_norm": rms_norm,
        "rms_norm_backward": rms_norm_backward,
        "gelu": gelu,
        "gelu_backward": gelu_backward,
        "swiglu": swiglu,
        "swiglu_backward": swiglu_backward,
        "geglu": geglu,
        "geglu_backward": geglu_backward,
        "soft_cap": soft_cap,
        "soft_cap_backward": soft_cap_backward,
        "scaled": scaled,
        "rotary": rotary,
        "rotary_backward": rotary_backward,
        "split_qkv": split_qkv,
        "merge_qkv": merge_qkv,
        "add": add,
        "append": append,
        "take_rows": take_rows,
        "rows": rows,
        "take_chunks": take_chunks,
        "slice": slice_,
        "zero": zero,
        "scale": scale,
        "squared_norm": squared_norm,
        "zeros": zeros,
        "copy": copy,
    }
)
