"""OSDP's operators, each replicated or sharded on its own, and the step of a program with some sharded operators.

An operator is an embedding table, or a linear layer with its bias and the norm before it. Split into g slices along its
input, a linear layer is g operators, of which the first z are sharded (Jiang et al., IJCAI 2023). The norm belongs to
the first slice and the bias to the last, next to the products that use them. A sharded operator is gathered before it
computes, freed, and gathered again in backward. The gradient of a replicated operator is all_reduced by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from sim.plan.functions.tracing import Parameter, ProgramTracer
from sim.plan.words.mesh import Mesh
from sim.training.data.buckets import TIED_SOURCE, Bucket
from sim.training.data.optimizer import StepEndWriter
from sim.training.data.osdp import REPLICATED, Choice
from sim.training.data.sharding import Gathering, ShardedStepWriter
from sim.training.data.units import Unit, make_unit
from sim.training.pipeline.placement import Placement
from sim.training.spec.job import DenseTraining, TrainingJob
from sim.training.spec.models.model import TransformerSpec

Choices = Mapping[str, Choice]
"""The choice of every operator by name; an operator without a choice is replicated."""

_JOINED = {"norm1": "qkv", "norm2": "fc1", "final_norm": "head"}
"""The linear layer after each norm."""


def choices_of_layers(model: TransformerSpec, layers: Iterable[int], *, ends: bool) -> tuple[tuple[str, Choice], ...]:
    """Return the choices that shard all operators of some layers; ``ends``: those of embedding and head as well."""
    names = [f"layer{layer}.{name}" for layer in layers for name in ("qkv", "projection", "fc1", "fc2")]
    if ends:
        names += ["embedding.word", *(["embedding.position"] if model.family == "gpt" else [])]
        names.append("final_norm" if model.tied_embeddings else "head")
    return tuple((name, Choice(1, 1)) for name in names)


def operator_shares(model: TransformerSpec) -> tuple[float, ...]:
    """Return the part of a layer's weights in each of its operators, in the order of forward."""
    heads, width = model.num_heads * model.head_size, model.hidden_size
    keys = 2 * model.num_kv_heads * model.head_size
    into = (model.mlp_matrices - 1) * width * model.ffn_hidden_size
    sizes = ((heads + keys) * width, heads * width, into, model.ffn_hidden_size * width)
    return tuple(size / sum(sizes) for size in sizes)


def linear_layers(job: TrainingJob) -> dict[str, int]:
    """Return the first dimension of a rank's slice of the input of every linear layer that can be split, by name."""
    model, tensor = job.model, job.parallel.tensor
    column, row = tensor.column_layout(outputs=1), tensor.row_layout(outputs=1)
    inputs = {
        "qkv": (model.hidden_size, column),
        "projection": (model.num_heads, row),
        "fc1": (model.hidden_size, column),
        "fc2": (model.ffn_hidden_size, row),
    }
    mesh = Mesh(tensor.axes)
    sizes = {name: size // mesh.degree(*layout.shard_axes(0)) for name, (size, layout) in inputs.items()}
    layers = {f"layer{i}.{name}": size for i in range(model.num_layers) for name, size in sizes.items()}
    return layers if model.tied_embeddings else layers | {"head": model.hidden_size}


class OperatorSlice(Struct, frozen=True):
    """One slice of an operator, or a whole operator: its parameters, and whether it is sharded."""

    operator: str
    name: str
    parameters: tuple[str, ...]
    is_sharded: bool


def operator_slices(parameters: Sequence[str], choices: Choices, *, tied_embeddings: bool) -> list[OperatorSlice]:
    """Return the slices of the operators that have these parameters, ordered by their first parameter."""
    members: dict[tuple[str, int], list[str]] = {}
    for parameter in parameters:
        operator = _operator_of(parameter, tied_embeddings=tied_embeddings)
        count = choices.get(operator, REPLICATED).num_slices
        members.setdefault((operator, _slice_of(parameter, count)), []).append(parameter)
    slices = []
    for (operator, index), names in members.items():
        count, sharded = choices.get(operator, REPLICATED)
        name = f"{operator}.slice{index}" if count > 1 else operator
        slices.append(OperatorSlice(operator, name, tuple(names), index < sharded))
    return slices


def _operator_of(parameter: str, *, tied_embeddings: bool) -> str:
    *layer, module, _ = parameter.partition(".part")[0].split(".")
    if module == "embedding" or (module == "final_norm" and tied_embeddings):
        return parameter if module == "embedding" else module
    return ".".join((*layer, _JOINED.get(module, module)))


def _slice_of(parameter: str, count: int) -> int:
    stem, _, part = parameter.partition(".part")
    if part:
        return int(part)
    is_norm = any(f"{norm}." in stem for norm in _JOINED)
    return 0 if is_norm else count - 1


def write_operator_step(
    job: DenseTraining,
    tracer: ProgramTracer,
    place: Placement,
    rank: int,
    groups: Mapping[int, Sequence[Parameter]],
    choices: Choices,
) -> tuple[list[str], list[str]]:
    """Write a program's step with the chosen operators sharded and the others replicated; its passes are written.

    ``groups``: the rank's parameters by stage of the model.

    Returns the names of the tasks before and after forwards and backwards, in call order.
    """
    fresh = {p.source: tracer.parameters[p.source] for group in groups.values() for p in group}
    slices = operator_slices(list(fresh), choices, tied_embeddings=job.model.tied_embeddings)
    ends = place.ranks[0], place.ranks[-1]
    apart = job.model.tied_embeddings and ends[0] != ends[1] and rank in ends
    units: dict[bool, list[Unit]] = {False: [], True: []}
    for piece in slices:
        tied = apart and piece.operator == TIED_SOURCE
        units[piece.is_sharded].append(make_unit(piece.name, [fresh[name] for name in piece.parameters], tied=tied))
    step_end = StepEndWriter(job, tracer, job.training.types, ends, ())
    return ShardedStepWriter(job, tracer, step_end, units[True], Gathering(), list(_buckets(units[False]))).write()


def _buckets(units: Sequence[Unit]) -> Iterator[Bucket]:
    """Yield a bucket per replicated operator, in the order of backward; gradients with partial axes have their own.

    A table that is tied to another rank's table comes last, since the other rank may have its gradient later.
    """
    index = 0
    ready = [unit for unit in reversed(units) if not unit.tied]
    for unit in (*ready, *(unit for unit in units if unit.tied)):
        rest = tuple(p for p in unit.parameters if p not in unit.partial)
        for members, axes in ((rest, ()), (unit.partial, unit.partial_axes)):
            if members:
                yield Bucket(index, members, axes, unit.tied)
                index += 1


def buffers_of(piece: OperatorSlice) -> frozenset[str]:
    """Return the buffers of a slice: its parameters, gradients and optimizer state."""
    states = ("", ".exp_avg", ".exp_avg_sq", ".master")
    whole = {f"{name}{label}" for name in piece.parameters for label in (*states, ".gradient", ".regathered")}
    shards = {f"shard.{piece.name}{label}" for label in states}
    return frozenset(whole | shards | {f"gradient_shard.{piece.name}", f"gradient_piece.{piece.name}"})
