"""Comparison of an executed inference with the dense model's pass over whole sequences, without caches.

The dense model takes a prompt with the tokens that the run itself has chosen after it, all at once. Its logits at each
position must be those of the run's pass that computed this position, and the chosen tokens the most likely ones.
"""

from collections.abc import Iterator

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from backends.execution.result import CheckReport
from backends.torch.reference.check import TOLERANCES, relative_error
from backends.torch.reference.dense import DenseModel, initial_parameters, parameter_shapes
from backends.torch.reference.eight_bits import EightBitModel, rounded_weights
from backends.torch.running.interpreter import Interpreter
from backends.torch.values.randomness import token_ids
from sim.inference.spec import InferenceJob
from sim.plan.words.op import Compute
from sim.plan.words.program import Program
from sim.training.data.axes import SAMPLE_AXES
from sim.training.spec.job import DenseTraining, ParallelSpec, TrainingSpec
from sim.training.spec.models.model import TransformerSpec


def kept_for_generation(program: Program) -> frozenset[str]:
    """Return the buffers that the check reads after the step: logits of all words, and chosen tokens."""
    return frozenset(name for op in _choices(program) for name in (*op.reads, *op.writes))


def check_generation(interpreter: Interpreter, job: InferenceJob, step: int) -> CheckReport:
    """Compare the logits and tokens of a rank with the dense model's; a rank without a head has nothing to compare.

    ``step``: number of steps before the one that ran.
    """
    errors: dict[str, float] = {}
    tolerance = TOLERANCES["fp64" if job.wide else job.precision]
    choices = list(_choices(interpreter.program))
    if choices:
        check = _Check(interpreter, job, step, _dense(job, step, interpreter.device.torch_device))
        for microbatch in range(job.num_microbatches):
            for name, error in check.errors(choices, microbatch):
                errors[name] = max(error, errors.get(name, 0.0))
    return CheckReport(errors, tolerance)


class _Check(Struct, frozen=True):
    interpreter: Interpreter
    job: InferenceJob
    step: int
    dense: DenseModel

    def errors(self, choices: list[Compute], microbatch: int) -> Iterator[tuple[str, float]]:
        """Yield the errors of a micro-batch's logits, and how much less likely than others its tokens are.

        ``choices``: the op of each pass that chooses.
        """
        logits = [self._value(op.reads[0], microbatch).flatten(0, 1) for op in choices]
        chosen = [self._value(op.writes[0], microbatch).flatten() for op in choices]
        for index in range(len(self.job.prompt_tokens)):
            expected = self._expected(self._text(index, microbatch, chosen), self.job.prompt_tokens[index])
            for tokens, op, of_pass, ids in zip(self.job.passes, choices, logits, chosen, strict=True):
                span, count = tokens.spans[index], 1 if tokens.index == 0 else self.job.tokens_per_step
                own = slice(index * count, (index + 1) * count)
                whole = expected[span.end - count : span.end]
                yield op.reads[0], relative_error(of_pass[own], whole)
                behind = whole.max(-1).values - whole.gather(-1, ids[own, None])[:, 0]
                yield op.writes[0], float(behind.max() / whole.abs().max())

    def _text(self, index: int, microbatch: int, chosen: list[Tensor]) -> Tensor:
        """Return the tokens of a sequence that the run has computed: given ones, or a prompt and chosen ones."""
        job, interpreter = self.job, self.interpreter
        mesh = interpreter.plan.mesh
        place = microbatch * mesh.degree(*SAMPLE_AXES) + mesh.index(interpreter.rank, SAMPLE_AXES)
        last = job.passes[-1].spans[index].end
        text = token_ids(
            job.seed, self.step, first_sample=place * len(job.prompt_tokens) + index, num_samples=1,
            positions=torch.arange(last, device=self.dense.device), vocab_size=job.model.vocab_size,
        )[:, 0]  # fmt: skip
        if job.tokens_per_step == 1:
            for position, ids in enumerate(chosen[:-1], job.prompt_tokens[index]):
                text[position] = ids[index]
        return text

    def _expected(self, text: Tensor, num_prompt: int) -> Tensor:
        """Return the dense model's logits [tokens, V] at every position of a text that begins with a prompt."""
        dense, model = self.dense, self.job.model
        if isinstance(dense, EightBitModel):
            dense = replace(dense, num_prompt=num_prompt)
        x = dense.through(dense.embedded(text[:, None]), range(model.num_layers))
        return dense.logits_of(x, "final_norm", "embedding.word" if model.tied_embeddings else "head.weight")[:, 0]

    def _value(self, name: str, microbatch: int) -> Tensor:
        tensor = self.interpreter.schedule.slots[name, microbatch].tensor
        assert tensor is not None
        return tensor


def _choices(program: Program) -> Iterator[Compute]:
    """Yield the op of each pass that chooses tokens by their logits, in order."""
    for task in program.tasks.values():
        for op in task.ops:
            if isinstance(op, Compute) and op.kernel == "most_likely":
                yield op


def _dense(job: InferenceJob, step: int, device: torch.device) -> DenseModel:
    """Return the dense model of a job, for one sequence, with slots for all choices of experts."""
    training = DenseTraining(
        model=_dropping_none(job.model), seed=job.seed, parallel=ParallelSpec(),
        training=TrainingSpec(
            global_batch_size=1, microbatch_size=1, precision="fp64" if job.wide else job.precision
        ),
    )  # fmt: skip
    parameters = initial_parameters(training, parameter_shapes(job.model), device)
    if not job.types.casts and job.cache_precision is None:
        return DenseModel(training, parameters, step, device)
    return EightBitModel(
        training, rounded_weights(parameters) if job.types.casts else parameters, step, device,
        ranks=job.parallel.tensor.degree, operands=job.types.casts, caches=job.cache_precision is not None,
    )  # fmt: skip


def _dropping_none(model: TransformerSpec) -> TransformerSpec:
    experts = model.experts
    if experts is None:
        return model
    return replace(model, experts=replace(experts, capacity_factor=float(experts.num_experts)))
