"""An inference job in, a plan out: a pass over the prompts, then step after step of decoding.

Layers, products and their tensor parallelism are those of training, in their forward form. A pass of a micro-batch on a
stage is a task. The caches belong to the micro-batch, and live until its last pass. A stage computes a pass of all
micro-batches before the next pass of the first. The last stage chooses the next tokens, and sends them to the first.
"""

from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from sim.inference.spec import InferenceJob
from sim.plan.functions.cached_tokens import CachedTokens, last_rows, most_likely, prompt_tokens
from sim.plan.functions.float8 import StoredProducts
from sim.plan.functions.linear import Products
from sim.plan.functions.tracing import ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.layout import Layout, Shard
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Direction, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program
from sim.training.data.axes import training_mesh
from sim.training.spec.job import split_layers
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS, PIPELINE_AXIS
from sim.training.steps.transformer import TransformerBuilder

CHOSEN: Final = "chosen"
"""Begin of the names of the buffers with the chosen tokens of each pass."""
_DEALT: Final = Layout(((DATA_AXIS, Shard(1)),))
"""The layout of tensors [tokens, 1, ...]: every replica has other sequences."""


def build_inference(job: InferenceJob, name: str) -> Plan:
    """Return the plan of prompts and decoding: one program per pipeline rank."""
    mesh = training_mesh(job.parallel)
    stages = range(job.parallel.pipeline.degree)
    return Plan(name, mesh, tuple(_StageBuilder(job, mesh, stage).build() for stage in stages), job.seed)


@dataclass(slots=True)
class _StageBuilder:
    """Builds the program of one pipeline rank."""

    job: InferenceJob
    mesh: Mesh
    stage: int
    tracer: ProgramTracer = field(init=False)
    model: TransformerBuilder = field(init=False)

    def __post_init__(self) -> None:
        job, types = self.job, self.job.types
        role = {PIPELINE_AXIS: self.stage} if self._num_stages > 1 else {}
        self.tracer = ProgramTracer(self.mesh, types.parameter, types.gradient, role)
        self.model = TransformerBuilder(
            job.model,
            1,
            tensor=job.parallel.tensor,
            recompute="none",
            loss_scale=0.0,
            products=StoredProducts() if types.casts else Products(),
        )

    @property
    def _num_stages(self) -> int:
        return self.job.parallel.pipeline.degree

    @property
    def _is_first(self) -> bool:
        return self.stage == 0

    @property
    def _is_last(self) -> bool:
        return self.stage == self._num_stages - 1

    def build(self) -> Program:
        """Return the stage's program; nothing is trained, so it has no gradients."""
        calls = [call for tokens in self.job.passes for call in self._calls(self._write_pass(tokens))]
        buffers = {name: b for name, b in self.tracer.buffers.items() if b.kind is not Kind.GRADIENT}
        return Program(dict(self.tracer.role), buffers, dict(self.tracer.tasks), tuple(calls))

    def _calls(self, tasks: list[str]) -> list[Call]:
        """Return the calls of a pass: all of its tasks for one micro-batch after the other."""
        return [Call(task, microbatch) for microbatch in range(self.job.num_microbatches) for task in tasks]

    def _write_pass(self, tokens: CachedTokens) -> list[str]:
        """Write a pass through the stage and its messages; return their tasks in order."""
        t = TaskTracer(self.tracer, part=tokens.label, recording=False)
        model, arriving = replace(self.model, part=tokens), self._arriving(tokens)
        tasks = [] if arriving is None else [self._receive(tokens, arriving)]
        x = model.embedded(t, self._ids(t, tokens, arriving)) if arriving is None or self._is_first else arriving
        layers = split_layers(self.job.model.num_layers, self.job.parallel.pipeline)
        x = model.layers(t, range(sum(layers[: self.stage]), sum(layers[: self.stage + 1])), x)
        if self._is_last:
            x = self._choose(t, model, x, tokens)
        phase = Phase.DECODE if tokens.index else Phase.PREFILL
        tasks.append(self.tracer.add_task(f"{phase}.{self.stage}{tokens.label}", phase, t.ops, self.stage).name)
        if not self._is_last or (self._num_stages > 1 and tokens.index < self.job.num_steps):
            tasks.append(self._send(tokens, x))
        return tasks

    def _arriving(self, tokens: CachedTokens) -> Tensor | None:
        """Return what another stage sends for a pass: hidden states, or tokens that it has chosen; None: nothing."""
        if not self._is_first:
            shape, dtype = (tokens.num_tokens, 1, self.job.model.hidden_size), self.job.types.activation
            return self.tracer.tensor(
                Buffer(f"input.{self.stage}{tokens.label}", shape, dtype, Kind.ACTIVATION), _DEALT
            )
        if tokens.index == 0 or self._is_last:
            return None
        chosen = self._chosen_before(tokens)
        return self.tracer.tensor(Buffer(chosen.name, chosen.shape, chosen.dtype, Kind.WORKSPACE), _DEALT)

    def _ids(self, t: TaskTracer, tokens: CachedTokens, arriving: Tensor | None) -> Tensor:
        """Return the new tokens of a pass: of the text, or those that the pass before has chosen."""
        if tokens.index:
            chosen = arriving or self._chosen_before(tokens)
            if self.job.tokens_per_step == 1:
                return chosen
            t.wait_for(chosen.name)  # of a text that is given, a pass is known to be right once it is verified
        return prompt_tokens(t, "tokens", tokens.spans, vocabulary=self.job.model.vocab_size, axes=(DATA_AXIS,))

    def _chosen_before(self, tokens: CachedTokens) -> Tensor:
        """Return the tokens that the pass before has chosen: one per sequence, of a verified text one per token."""
        count = len(tokens.spans) * (1 if tokens.index == 1 else self.job.tokens_per_step)
        return Tensor(f"{CHOSEN}@{tokens.index - 1}", (count, 1), "int64", _DEALT)

    def _choose(self, t: TaskTracer, model: TransformerBuilder, x: Tensor, tokens: CachedTokens) -> Tensor:
        """Return the most likely next token of each sequence, of a verified text after each of its tokens."""
        if tokens.index == 0:
            x = last_rows(t, "last_tokens", x, tokens)
        chosen = most_likely(t, CHOSEN, model.logits(t, x, model.head_names))
        if tokens.index == self.job.num_steps:
            t.wait_for(chosen.name)  # the answer is complete
        return chosen

    def _receive(self, tokens: CachedTokens, x: Tensor) -> str:
        what = "tokens" if self._is_first else "forward"
        name = f"recv_{what}.{self.stage}{tokens.label}"
        op = Recv(name, PIPELINE_AXIS, -1, Direction.FORWARD, (x.name,), f"pp_recv_{what}")
        return self.tracer.add_task(name, Phase.RECV, (op,), self.stage).name

    def _send(self, tokens: CachedTokens, x: Tensor) -> str:
        what = "tokens" if self._is_last else "forward"
        name = f"send_{what}.{self.stage}{tokens.label}"
        op = Send(name, PIPELINE_AXIS, 1, Direction.FORWARD, (x.name,), f"pp_send_{what}")
        return self.tracer.add_task(name, Phase.SEND, (op,), self.stage).name
