"""The techniques of a strategy, each with a test for its use."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from sim.training.pipeline.rules import SLICED_SCHEDULES, Schedule
from sim.training.sequence.registry import SequenceMethodName
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.parallelism.parallel import ParallelSpec
from sim.training.spec.training import TrainingSpec
from sim.training.tensor.registry import TensorMethodName

SPLIT_SCHEDULES: Final[tuple[Schedule, ...]] = ("zb_h1", "zb_h2", "zb_v", "zb_auto", "dualpipe_v", "custom")
"""Schedules whose backwards may come in two parts, of one copy of the model."""
TWO_COPIES: Final[tuple[Schedule, ...]] = ("chimera", "dualpipe")


class Strategy(Struct, frozen=True):
    """The parts of a job that decide which techniques it uses."""

    model: TransformerSpec
    training: TrainingSpec
    parallel: ParallelSpec


Predicate = Callable[[Strategy], bool]


class Technique(Struct, frozen=True):
    """One technique. ``choice``: its key, if it is one value of a key; two values of one key are never used together.

    ``needs``: alternative sets of techniques. This technique is an option of them: all of one set must be used too.
    """

    label: str
    is_used: Predicate
    choice: str = ""
    needs: tuple[tuple[str, ...], ...] = ((),)


def _schedules(label: str, schedules: tuple[Schedule, ...], *needed: str) -> Technique:
    return Technique(label, lambda s: s.parallel.pipeline.schedule in schedules, "schedule", (needed,))


def _zero(stage: int) -> Technique:
    return Technique(f"ZeRO stage {stage}", lambda s: s.parallel.zero_stage == stage, "zero_stage")


_METHOD: Final = "tensor method"
"""The choice of tensor-parallel methods beside 1d, and of the options of 1d alone: they are never used together."""


def _in_blocks(method: TensorMethodName) -> Technique:
    return Technique(f"{method} tensor parallelism", lambda s: s.parallel.tensor.name == method, _METHOD)


def _shared_by(method: SequenceMethodName, *needed: str) -> Technique:
    label = f"context parallelism by {method}"
    return Technique(label, lambda s: s.parallel.sequence.name == method, "context method", (needed,))


_IN_BLOCKS: Final[tuple[TensorMethodName, ...]] = ("2d", "2.5d", "3d")

TECHNIQUES: Final[Mapping[str, Technique]] = {
    "sequence_parallel": Technique(
        "sequence parallelism", lambda s: s.parallel.tensor.name == "1d" and s.parallel.tensor.cuts_residual, _METHOD
    ),
    "collective_matmul": Technique(
        "collective matmul", lambda s: s.parallel.tensor.splits_products, needs=(("sequence_parallel",),)
    ),
    **{f"tensor_{name.replace('.', '_')}": _in_blocks(name) for name in _IN_BLOCKS},
    "scatter_gather": Technique("scattered boundaries", lambda s: s.parallel.pipeline.scatter_gather),
    "p2p": _shared_by("p2p"),
    "all_gather": _shared_by("all_gather"),
    "ulysses": _shared_by("ulysses"),
    "ring_self_attention": _shared_by("ring_self_attention", "core_attention"),
    "two_level": _shared_by("two_level"),
    "contiguous": Technique(
        "sequences in contiguous blocks",
        lambda s: len(s.parallel.sequence.roles(causal=True)) > 1,
        needs=(("p2p",), ("all_gather",), ("two_level",)),
    ),
    "latent_attention": Technique("latent attention", lambda s: s.model.latent_attention is not None),
    "sliding_window": Technique("sliding windows", lambda s: s.model.sliding_window is not None),
    "full_mask": Technique("full masks", lambda s: not s.model.causal),
    "score_cap": Technique("capped scores", lambda s: s.model.score_cap > 0.0, needs=(("core_attention",),)),
    "core_attention": Technique("attention with scores kept", lambda s: s.model.attention == "core"),
    "tied_embeddings": Technique("tied embeddings", lambda s: s.model.tied_embeddings),
    "experts": Technique("experts", lambda s: s.model.experts is not None),
    "expert_parallel": Technique("expert parallelism", lambda s: s.parallel.expert_degree > 1, needs=(("experts",),)),
    "tied_over_ranks": Technique(
        "tied embeddings on two pipeline ranks",
        lambda s: s.model.tied_embeddings and s.parallel.pipeline.degree > 1,
        needs=(("tied_embeddings", "pipeline"),),
    ),
    "pipeline": Technique("pipeline of 2 or more ranks", lambda s: s.parallel.pipeline.degree > 1),
    "split_backward": _schedules("zero bubble, dualpipe_v, custom", SPLIT_SCHEDULES),
    "two_copies": _schedules("chimera, dualpipe", TWO_COPIES, "pipeline"),
    "sliced": _schedules("terapipe, seq_1f1b", SLICED_SCHEDULES),
    "token_slices": Technique(
        "several token slices",
        lambda s: s.parallel.pipeline.num_slices > 1 or s.parallel.pipeline.awaits_slices,
        needs=(("sliced",),),
    ),
    "aiao": _schedules("aiao", ("aiao",)),
    "delayed": _schedules("pipedream_2bw", ("pipedream_2bw",)),
    "local": Technique("local updates", lambda s: s.training.method == "local", "schedule"),
    "zero_1": _zero(1),
    "zero_2": _zero(2),
    "zero_3": _zero(3),
    "osdp": Technique("osdp", lambda s: s.parallel.osdp is not None),
    "offload": Technique("offload", lambda s: s.parallel.sharding.offload is not None, needs=(("zero_2",),)),
    "delayed_update": Technique(
        "delayed update", lambda s: s.parallel.sharding.delayed_update, needs=(("offload", "zero_2"),)
    ),
    "tiered": Technique("memory in tiers", lambda s: s.parallel.memory is not None, needs=(("zero_3",),)),
    "shard_degree": Technique(
        "groups of shards", lambda s: s.parallel.sharding.shard_degree is not None, needs=(("zero_2",), ("zero_3",))
    ),
    "local_degree": Technique(
        "gathers in two levels", lambda s: s.parallel.sharding.local_degree is not None, needs=(("zero_3",),)
    ),
    "reshard_after_forward": Technique(
        "parameters kept for backward",
        lambda s: s.parallel.sharding.reshard_after_forward is not None,
        needs=(("zero_3",),),
    ),
    "sync_once": Technique(
        "gradients sharded once a step",
        lambda s: not s.parallel.sharding.syncs_each_microbatch,
        needs=(("zero_2",), ("zero_3",), ("osdp",)),
    ),
    "parameter_gather": Technique(
        "gathers left to the next step", lambda s: s.parallel.overlap_parameter_gather, needs=(("zero_1",),)
    ),
    "deferred_sync": Technique(
        "stated part of sums left to the next step",
        lambda s: s.parallel.pipeline.schedule == "aiao" and s.parallel.deferred_sync is not None,
        needs=(("aiao",),),
    ),
    "bucket": Technique("buckets of a stated size", lambda s: s.parallel.bucket_bytes > 0),
    "blocking_sync": Technique(
        "synchronisation after backward", lambda s: not s.parallel.overlap_gradient_sync, "overlap_gradient_sync"
    ),
    "overlapped_sync": Technique(
        "synchronisation under backward", lambda s: s.parallel.overlap_gradient_sync, "overlap_gradient_sync"
    ),
    "fp8": Technique("fp8", lambda s: s.training.types.casts, "precision"),
    "recomputed_layers": Technique(
        "some layers recomputed",
        lambda s: s.training.recompute_num_layers is not None or s.training.recompute_layers is not None,
    ),
    "set_gradients_to_none": Technique("gradients assigned", lambda s: s.training.set_gradients_to_none),
    "prescale_gradients": Technique(
        "gradients scaled in a pass", lambda s: s.training.prescale_gradients, needs=(("blocking_sync",),)
    ),
    "check_gradients": Technique(
        "gradients checked in a pass", lambda s: s.training.check_gradients, needs=(("blocking_sync",),)
    ),
}
"""All techniques by name, in the order of the docs."""


def with_needs(name: str) -> list[frozenset[str]]:
    """Return the smallest sets that use a technique: itself and, for each alternative, the techniques that it needs."""
    return [frozenset((name, *needed)) for needed in TECHNIQUES[name].needs]


def is_possible(used: frozenset[str]) -> bool:
    """Return whether no two of some techniques are values of one key."""
    choices = [TECHNIQUES[name].choice for name in used if TECHNIQUES[name].choice]
    return len(choices) == len(set(choices))


def used_by(strategy: Strategy) -> frozenset[str]:
    """Return the techniques that a strategy uses."""
    return frozenset(name for name, technique in TECHNIQUES.items() if technique.is_used(strategy))
