"""The reference: the dense model in plain torch, on one device, with autograd. Every plan must reproduce its results.

It does not use the plan's kernels. Parameters, tokens and dropout masks come from the same pure functions of the seed.
All computation is in float64; parameters start with the rounding of the plan's precision.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count, islice
from math import sqrt
from typing import Final

import torch
from msgspec import Struct, field
from torch import Tensor
from torch.nn import functional as nn

from backends.torch.kernels import DTYPES
from backends.torch.reference.experts import expert_shapes, through_experts
from backends.torch.reference.gates import GateInputs
from backends.torch.reference.latent import latent_qkv, latent_shapes
from backends.torch.values.randomness import (
    dropout_key,
    expert_draws,
    gumbel_noise,
    hashed_experts,
    initial_normal,
    kept_by_dropout,
    token_ids,
)
from sim.training.layers.rank_routing import forced_of_replicas, places_of_experts
from sim.training.spec.job import DenseTraining
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.precision import PRECISIONS

_INITIAL_DEVIATION: Final = 0.02
_NORM_EPSILON: Final = 1e-5
ROUTER_BIAS: Final = ".router.bias"
"""End of the name of the biases by which a gate chooses experts; they have a rule of their own and no gradient."""


class Reference(Struct, frozen=True):
    """Losses and gradients of the last step, and the parameters before and after that step, by dense name.

    ``losses``: by the source of the buffers that hold them; backpropagation has one loss, named ``loss``.
    """

    losses: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    previous: Mapping[str, Tensor]

    @property
    def loss(self) -> Tensor:
        """Return the loss of backpropagation."""
        return self.losses["loss"]


class Objective(Struct, frozen=True):
    """The objective of a training method: the shapes of all parameters, and the function of the losses.

    ``evaluate`` returns the loss to differentiate, and the losses to report.
    """

    shapes: Mapping[str, tuple[int, ...]]
    evaluate: "Callable[[DenseModel], tuple[Tensor, Mapping[str, Tensor]]]"


def backpropagation(model: TransformerSpec) -> Objective:
    """Return the objective of backpropagation: the loss of the model's output, plus the experts' balance losses."""

    def evaluate(dense: DenseModel) -> tuple[Tensor, Mapping[str, Tensor]]:
        loss = dense.loss()
        return sum(dense.balance, loss), {"loss": loss.detach()}

    return Objective(parameter_shapes(model), evaluate)


def run_reference(
    job: DenseTraining, steps: int, device: torch.device, objective: Objective | None = None, delay: int = 0
) -> Reference:
    """Train the dense model for ``steps`` steps of its global batch; return the last. See ``reference_steps``."""
    return next(islice(reference_steps(job, device, objective, delay), steps - 1, None))


def reference_steps(
    job: DenseTraining, device: torch.device, objective: Objective | None = None, delay: int = 0
) -> Iterator[Reference]:
    """Yield step after step of the dense model on its global batch, without end; nothing is sharded or split.

    ``objective``: backpropagation by default. ``delay`` 1: every gradient is computed at the parameters of the step
    before, W(t+1) = W(t) - update(g(W(t-1))); the first two gradients are computed at the initial parameters.
    """
    objective = objective or backpropagation(job.model)
    parameters = initial_parameters(job, objective.shapes, device)
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in parameters.items()}
    previous = dict(parameters)
    rate = 0.0 if job.model.experts is None else job.model.experts.bias_update_rate
    for step in count():
        at, previous = previous if delay and step else parameters, dict(parameters)
        leaves = {name: p.detach().requires_grad_() for name, p in at.items() if not name.endswith(ROUTER_BIAS)}
        biases = {name: p for name, p in parameters.items() if name.endswith(ROUTER_BIAS)}
        model = DenseModel(job.at_step(step), leaves | biases, step, device)
        loss, losses = objective.evaluate(model)
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        for name, gradient in gradients.items():
            parameters[name] = _updated(job, parameters[name], gradient, moments[name], step + 1)
        for name in biases:
            gradients[name] = torch.sign(model.choices[name] - model.choices[name].double().mean())
            parameters[name] = parameters[name] - rate * gradients[name]
        yield Reference(losses, gradients, dict(parameters), previous)


def _updated(
    job: DenseTraining, parameter: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], step: int
) -> Tensor:
    if job.training.optimizer == "sgd":
        return parameter - job.training.learning_rate * gradient
    return _adam(job, parameter, gradient, moments, step)


def _adam(job: DenseTraining, parameter: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], step: int) -> Tensor:
    t, (first, second) = job.training, moments
    first.copy_(t.adam_beta1 * first + (1 - t.adam_beta1) * gradient)
    second.copy_(t.adam_beta2 * second + (1 - t.adam_beta2) * gradient**2)
    unbiased_first = first / (1 - t.adam_beta1**step)
    unbiased_second = second / (1 - t.adam_beta2**step)
    return parameter - t.learning_rate * unbiased_first / (unbiased_second.sqrt() + t.adam_epsilon)


# --- parameters --------------------------------------------------------------------------------------------


def parameter_shapes(model: TransformerSpec) -> dict[str, tuple[int, ...]]:
    """Return the global shape of every parameter of the dense model."""
    h, f, v = model.hidden_size, model.ffn_hidden_size, model.vocab_size
    groups, head, latent = model.num_kv_heads, model.head_size, model.latent_attention
    slots = model.num_heads // groups + 2
    qkv = {"qkv.weight": (h, groups, slots, head)} if latent is None else latent_shapes(latent, h, model.num_heads)
    gpt = model.family == "gpt"
    shapes: dict[str, tuple[int, ...]] = {"embedding.word": (v, h)}
    if gpt:
        shapes["embedding.position"] = (model.sequence_length, h)
    for i in range(model.num_layers):
        layer = {
            "norm1.weight": (h,), **qkv,
            "projection.weight": (model.num_heads, head, h), "norm2.weight": (h,),
        }  # fmt: skip
        if gpt:
            layer |= {"norm1.bias": (h,), "projection.bias": (h,), "norm2.bias": (h,)}
        if gpt or model.qkv_bias:
            layer["qkv.bias"] = (groups, slots, head)
        if model.query_key_norm:
            layer |= {"q_norm.weight": (head,), "k_norm.weight": (head,)}
        if model.post_norms:
            layer |= {"post_norm1.weight": (h,), "post_norm2.weight": (h,)}
        if model.has_experts(i):
            layer |= expert_shapes(model)
        else:
            layer |= {"fc1.weight": (h, f) if gpt else (h, 2, f), "fc2.weight": (f, h)}
            layer |= {"fc1.bias": (f,), "fc2.bias": (h,)} if gpt else {}
        shapes |= {f"layer{i}.{name}": shape for name, shape in layer.items()}
    shapes["final_norm.weight"] = (h,)
    if gpt:
        shapes["final_norm.bias"] = (h,)
    if not model.tied_embeddings:
        shapes["head.weight"] = (v, h)
    return shapes


def initial_parameters(
    job: DenseTraining, shapes: Mapping[str, tuple[int, ...]], device: torch.device
) -> dict[str, Tensor]:
    """Return the first parameters, by dense name: float64, with the rounding of the plan's precision."""
    rounded = DTYPES[PRECISIONS[job.training.precision].parameter]
    parameters = {}
    for name, shape in shapes.items():
        if name.endswith("bias"):
            value = torch.zeros(shape, dtype=torch.float64, device=device)
        elif "norm" in name:
            value = torch.ones(shape, dtype=torch.float64, device=device)
        else:
            value = _INITIAL_DEVIATION * initial_normal(job.seed, name, shape, [0] * len(shape), shape, device=device)
        parameters[name] = value.to(rounded).to(torch.float64)
    return parameters


# --- the model ---------------------------------------------------------------------------------------------


def parameters_of(parameters: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the parameters of a part of the model, a layer or its attention, by their names in it."""
    return {name.removeprefix(f"{part}."): it for name, it in parameters.items() if name.startswith(f"{part}.")}


class DenseModel(Struct, frozen=True):
    """The dense model of a job with given parameters, on the global batch of one step.

    ``balance``: balance losses of the expert layers computed so far. ``choices``: how many fell on each expert in them,
    by the name of the layer's bias.
    """

    job: DenseTraining
    parameters: Mapping[str, Tensor]
    step: int
    device: torch.device
    balance: list[Tensor] = field(default_factory=list)
    choices: dict[str, Tensor] = field(default_factory=dict)

    @property
    def _spec(self) -> TransformerSpec:
        return self.job.model

    def operand(self, x: Tensor, *, rows: int = 2, shared: int | None = None) -> Tensor:
        """Return x as a product with a layer's weight takes it: as it is.

        ``rows``: first dimensions, which number vectors. ``shared``: dimension that tensor-parallel ranks share.
        """
        del rows, shared
        return x

    def kept(self, x: Tensor) -> Tensor:
        """Return keys, values or latents as later queries see them: as they are."""
        return x

    def loss(self) -> Tensor:
        """Return the mean cross entropy over the tokens of the global batch."""
        m = self._spec
        x = self.through(self.embedded(), range(m.num_layers))
        return self.loss_of(x, "final_norm", "embedding.word" if m.tied_embeddings else "head.weight")

    def embedded(self, ids: Tensor | None = None) -> Tensor:
        """Return the input of the first layer. ``ids``: tokens [s, b]; None: those of the global batch."""
        p = self.parameters
        x = p["embedding.word"][self._tokens(0) if ids is None else ids]
        if self._spec.scaled_embeddings:
            x = x * sqrt(self._spec.hidden_size)
        if self._spec.family == "gpt":
            x = x + p["embedding.position"][: x.shape[0], None, :]
        return self._dropped(x, "embedding", batch_dim=1)

    def through(self, x: Tensor, layers: range) -> Tensor:
        """Return the output of the last of these layers for the input x of the first."""
        for i in layers:
            y = self._post_norm(self._attention(i, self._norm(x, f"layer{i}.norm1")), f"layer{i}.post_norm1")
            x = x + self._branch(y, f"layer{i}", "projection", "attention_out")
            normed = self._norm(x, f"layer{i}.norm2")
            if self._spec.has_experts(i):
                found = through_experts(
                    self._spec, parameters_of(self.parameters, f"layer{i}"), normed,
                    microbatch_size=self.job.training.microbatch_size,
                    chunks=self.job.parallel.sequence.chunks, inputs=self._gate_inputs(f"layer{i}"),
                    forced=forced_of_replicas(self.job, i), operand=self.operand,
                )  # fmt: skip
                self.balance.append(found.balance)
                self.choices[f"layer{i}{ROUTER_BIAS}"] = found.asked
                y = self._post_norm(found.y, f"layer{i}.post_norm2")
                x = x + self._dropped(y, f"layer{i}.mlp_out", batch_dim=1)
            else:
                y = self._post_norm(self._mlp(i, normed), f"layer{i}.post_norm2")
                x = x + self._branch(y, f"layer{i}", "fc2", "mlp_out")
        return x

    def loss_of(self, x: Tensor, norm: str, table: str) -> Tensor:
        """Return the mean cross entropy of a head over the tokens of the global batch."""
        return nn.cross_entropy(self.logits_of(x, norm, table).flatten(0, 1), self._tokens(1).flatten())

    def logits_of(self, x: Tensor, norm: str, table: str) -> Tensor:
        """Return the logits of a head: a norm, and the product with a vocabulary table."""
        logits = self._norm(x, norm) @ self.parameters[table].T
        if cap := self._spec.logit_cap:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def _tokens(self, shift: int) -> Tensor:
        m = self._spec
        return token_ids(
            self.job.seed, self.step,
            first_sample=0, num_samples=self.job.training.global_batch_size,
            positions=torch.arange(m.sequence_length, device=self.device) + shift, vocab_size=m.vocab_size,
        )  # fmt: skip

    def _gate_inputs(self, layer: str) -> GateInputs:
        """Return the inputs of a layer's gate besides the scores, for all tokens of the global batch."""
        salt = f"{layer}.route"
        job, spec = self.job, self._spec.experts
        assert spec is not None
        batch = job.training.global_batch_size
        positions = torch.arange(self._spec.sequence_length, device=self.device)
        return GateInputs(
            hashed_experts(job.seed, salt, self._tokens(0), spec.num_experts),
            expert_draws(job.seed, self.step, salt, first_sample=0, num_samples=batch, positions=positions),
            gumbel_noise(
                job.seed, self.step, salt, spec.num_experts, first_sample=0, num_samples=batch, positions=positions
            ),
            self.parameters.get(layer + ROUTER_BIAS, torch.zeros(spec.num_experts, device=self.device)),
            places_of_experts(job),
        )

    def _dropped(self, x: Tensor, salt: str, *, batch_dim: int) -> Tensor:
        probability = self._spec.dropout
        if not probability:
            return x
        places = [torch.arange(n, device=self.device) for n in x.shape]
        kept = kept_by_dropout(
            dropout_key(self.job.seed, self.step, salt), x.shape, places,
            batch_dim=batch_dim, first_sample=0, probability=probability,
        )  # fmt: skip
        return x * kept / (1 - probability)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        width, weight = (self._spec.hidden_size,), self.parameters[f"{name}.weight"]
        if self._spec.family == "gpt":
            return nn.layer_norm(x, width, weight, self.parameters[f"{name}.bias"], _NORM_EPSILON)
        return nn.rms_norm(x, width, weight, _NORM_EPSILON)

    def _post_norm(self, y: Tensor, name: str) -> Tensor:
        return self._norm(y, name) if self._spec.post_norms else y

    def _branch(self, y: Tensor, layer: str, last: str, salt: str) -> Tensor:
        """Return the term that a branch adds to the residual stream."""
        if self._spec.family == "gpt":
            y = y + self.parameters[f"{layer}.{last}.bias"]
        return self._dropped(y, f"{layer}.{salt}", batch_dim=1)

    def _attention(self, index: int, x: Tensor) -> Tensor:
        context, weight = self.context(index, x), self.parameters[f"layer{index}.projection.weight"]
        return torch.einsum("sbnd,ndh->sbh", self.operand(context, shared=2), weight)

    def context(self, index: int, x: Tensor) -> Tensor:
        """Return the attention [s, b, n, d] of a layer's input, before the last projection."""
        m, name = self._spec, f"layer{index}"
        window = m.sliding_window if m.sliding_window is not None and m.sliding_window.is_of(index) else None
        q, k, v = self._qkv(name, x, m.rotary_base_of(index))
        scores = torch.einsum("sbnd,tbnd->bnst", q, k) / sqrt(q.shape[-1])
        if m.score_cap:
            scores = m.score_cap * torch.tanh(scores / m.score_cap)
        places = torch.arange(x.shape[0], device=self.device)
        back = places[:, None] - places  # distance from each key to the query, positive if the key is earlier
        hidden = (back < 0) | (back >= (window.size if window else m.sequence_length))
        probabilities = (scores.masked_fill(hidden, -torch.inf) if m.causal else scores).softmax(-1)
        if m.attention == "core":
            probabilities = self._dropped(probabilities, f"{name}.attention", batch_dim=0)
        return torch.einsum("bnst,tbnd->sbnd", probabilities, v)

    def _qkv(self, name: str, x: Tensor, rotary_base: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [s, b, n, d], with one key head and one value head for each query head."""
        m, p = self._spec, self.parameters
        if m.latent_attention is not None:
            own = parameters_of(p, name)
            turn = partial(self._turned, base=rotary_base)
            return latent_qkv(x, own, m.latent_attention, turn, _NORM_EPSILON, self.operand, self.kept)
        qkv = torch.einsum("sbh,hgcd->sbgcd", self.operand(x), p[f"{name}.qkv.weight"])
        if m.family == "gpt" or m.qkv_bias:
            qkv = qkv + p[f"{name}.qkv.bias"]
        repeats = m.num_heads // m.num_kv_heads
        q, k, v = qkv[:, :, :, :-2].flatten(2, 3), qkv[:, :, :, -2], qkv[:, :, :, -1]
        if m.query_key_norm:
            q, k = (
                nn.rms_norm(y, (m.head_size,), p[f"{name}.{which}_norm.weight"], _NORM_EPSILON)
                for y, which in ((q, "q"), (k, "k"))
            )
        if m.family == "llama":
            q, k = self._turned(q, rotary_base), self._turned(k, rotary_base)
        return q, self.kept(k).repeat_interleave(repeats, 2), self.kept(v).repeat_interleave(repeats, 2)

    def _turned(self, x: Tensor, base: float) -> Tensor:
        """Return x with rotary positions, by complex numbers: pair (i, i + d/2) times e^(i position base^(-2i/d))."""
        half = x.shape[-1] // 2
        speed = base ** (-torch.arange(half, dtype=x.dtype, device=self.device) / half)
        angles = torch.arange(x.shape[0], dtype=x.dtype, device=self.device)[:, None] * speed
        turned = (
            torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None, None, :]
        )
        return torch.cat((turned.real, turned.imag), -1)

    def _mlp(self, index: int, x: Tensor) -> Tensor:
        p, name, x = self.parameters, f"layer{index}", self.operand(x)
        if self._spec.family == "gpt":
            y = nn.gelu(x @ p[f"{name}.fc1.weight"] + p[f"{name}.fc1.bias"], approximate="tanh")
        else:
            gate, value = torch.einsum("sbh,hcf->csbf", x, p[f"{name}.fc1.weight"])
            y = (nn.silu(gate) if self._spec.gate == "silu" else nn.gelu(gate, approximate="tanh")) * value
        return self.operand(y, shared=2) @ p[f"{name}.fc2.weight"]
