"""Combinations of techniques: all refused pairs, each with its rule and a remedy.

Every other pair is built. Rules about numbers, such as divisibility, stand with their technique.
"""

from collections.abc import Iterator
from itertools import product
from typing import Final, Literal

from msgspec import Struct

from sim.training.errors import SpecError
from sim.training.pipeline.rules import SCHEDULE_KEY, SLICES_KEY
from sim.training.spec.parallelism.sharding import GRADIENT_SCHEDULES
from sim.training.spec.techniques import Strategy, is_possible, used_by, with_needs

_DATA: Final = "parallel.data"
_EXPERT_KEY: Final = "parallel.expert.degree"
_WHOLE: Final = " or ".join(GRADIENT_SCHEDULES)


class Refusal(Struct, frozen=True):
    """A refusal of pairs: none of ``ones`` goes with any of ``others``, ``unless`` a third technique is used.

    ``key``: the scenario key that the error names. ``rule`` and ``remedy`` may name the job's ``{schedule}``, its
    ``{zero_stage}``, the ``{degree}`` of its pipeline and its ``{tensor_method}``.
    """

    ones: tuple[str, ...]
    others: tuple[str, ...]
    key: str
    rule: str
    remedy: str
    unless: str = ""

    def refuses(self, used: frozenset[str]) -> bool:
        """Return whether a set of techniques has such a pair."""
        return not (used.isdisjoint(self.ones) or used.isdisjoint(self.others) or self.unless in used)

    def error(self, strategy: Strategy) -> SpecError:
        """Return the error for a strategy that has such a pair."""
        facts = {"schedule": strategy.parallel.pipeline.schedule, "zero_stage": strategy.parallel.zero_stage,
                 "degree": strategy.parallel.pipeline.degree,
                 "tensor_method": strategy.parallel.tensor.name}  # fmt: skip
        return SpecError(self.key, self.rule.format(**facts), self.remedy.format(**facts))


_SHARDED: Final = ("zero_2", "zero_3")
_IN_PARTS: Final = ("split_backward", "sliced")

_EXCHANGING: Final = ("p2p", "all_gather", "two_level")
"""Methods in which keys and values of other ranks come to a rank's queries."""
_SHARING: Final = (*_EXCHANGING, "ulysses", "ring_self_attention")

_OF_CONTEXT: Final = (
    Refusal(
        _EXCHANGING, ("core_attention",), "model.attention",
        "keys and values of other ranks come to fused attention, which keeps no scores",
        "write attention: flash, or method: ulysses or ring_self_attention",
    ),
    Refusal(
        _SHARING, ("token_slices",), SCHEDULE_KEY,
        "token slices and context parallelism cut the same sequences, and are not built together",
        "write schedule: 1f1b, or leave parallel.context out",
    ),
    Refusal(
        _SHARING, ("local",), SCHEDULE_KEY,
        "local is not built for context parallelism",
        "write schedule: 1f1b, or leave parallel.context out",
    ),
    Refusal(
        _SHARING, ("osdp",), f"{_DATA}.osdp",
        "osdp weighs operators over data-parallel ranks alone, not over those that share sequences",
        "write zero_stage: 3 without osdp, or leave parallel.context out",
    ),
)  # fmt: skip

_OF_WINDOWS: Final = (
    Refusal(
        ("sliding_window",), (*_EXCHANGING, "ring_self_attention"), "parallel.context.method",
        "ranks exchange the keys of whole sequences, and sliding windows hide most of them",
        "write method: ulysses, or model.sequence_length no larger than the window and no sliding_window",
    ),
    Refusal(
        ("full_mask",), ("token_slices",), SCHEDULE_KEY,
        "a slice runs before the tokens after it are there, so it cannot see them",
        "write schedule: 1f1b, or model.causal: true",
    ),
    Refusal(
        ("full_mask",), ("sliding_window",), "model.causal",
        "a sliding window is built for queries that see what comes before them",
        "leave it, or sliding_window, out",
    ),
    Refusal(
        ("sliding_window", "score_cap"), ("token_slices",), SCHEDULE_KEY,
        "attention over token slices is built without sliding windows and caps on scores",
        "write schedule: 1f1b",
    ),
)  # fmt: skip

_OF_SCHEDULES: Final = (
    Refusal(
        ("local",), _SHARDED, f"{_DATA}.zero_stage",
        "ZeRO stage {zero_stage} is not built for local updates", "write zero_stage: 1",
    ),
    Refusal(("local",), ("osdp",), f"{_DATA}.osdp", "osdp is not built for local updates", "leave it out"),
    Refusal(
        ("local",), ("tied_embeddings",), "model.tied_embeddings",
        "with local updates every block has a head and an optimizer step of its own, so it shares no table",
        "write tied_embeddings: false",
    ),
    Refusal(
        ("aiao",), _SHARDED, f"{_DATA}.zero_stage",
        "ZeRO stage {zero_stage} is not built for aiao, which keeps gradients whole until they are summed",
        "write zero_stage: 1, or schedule: breadth_first",
    ),
    Refusal(
        ("zero_1",), ("deferred_sync",), f"{_DATA}.deferred_sync",
        "with zero_stage: 1 gradients are scattered in this step and parameters gathered in the next",
        "leave it out, or write zero_stage: 0",
    ),
    Refusal(
        ("aiao",), ("osdp",), f"{_DATA}.osdp",
        "aiao synchronises segments, osdp chooses operator by operator, and they are not built together",
        "leave it out, or write another schedule",
    ),
    Refusal(
        ("aiao",), ("bucket",), f"{_DATA}.bucket",
        "aiao synchronises the gradients of a segment together, so there are no buckets",
        "leave it out, or write schedule: breadth_first",
    ),
    Refusal(
        ("aiao",), ("blocking_sync",), f"{_DATA}.overlap_gradient_sync",
        "aiao synchronises gradients while other segments compute: there is no blocking synchronisation",
        "leave it out, or write schedule: breadth_first",
    ),
    Refusal(
        ("delayed",), ("tied_over_ranks",), "model.tied_embeddings",
        "with {schedule} the first and the last rank update at different times, and share no table",
        "write tied_embeddings: false",
    ),
    *(
        Refusal(
            ("delayed",), sharding, f"{_DATA}.{key}",
            f"{key} is not built with {{schedule}}, which keeps two versions of whole weights",
            "leave it out, or write schedule: 1f1b",
        )
        for key, sharding in (("osdp", ("osdp",)), ("zero_stage", ("zero_1", *_SHARDED)))
    ),
)  # fmt: skip

_OF_OSDP: Final = (
    *(
        Refusal(("osdp",), others, f"{_DATA}.{key}", f"{key} {rule}", "leave it out, or leave osdp out")
        for key, others, rule in (
            (
                "zero_stage", ("zero_1", *_SHARDED),
                "says what all operators shard, and osdp chooses operator by operator",
            ),
            ("shard_degree", ("shard_degree",), "is not built with osdp: it shards over all replicas"),
            ("local_degree", ("local_degree",), "is not built with osdp: it gathers all at once"),
            (
                "reshard_after_forward", ("reshard_after_forward",),
                "is not built with osdp: it gathers again in backward",
            ),
            ("offload", ("offload",), "is not built with osdp: it updates operators on the devices"),
            ("bucket", ("bucket",), "is not built with osdp: every operator is synchronised by itself"),
            (
                "overlap_gradient_sync", ("blocking_sync",),
                "is not built with osdp: it synchronises while backward goes on",
            ),
        )
    ),
    Refusal(
        ("osdp",), (*_IN_PARTS, "two_copies"), f"{_DATA}.osdp",
        "osdp is not built for {schedule}: its backwards come in parts, or the model in copies",
        f"leave it out, or write schedule: {_WHOLE}",
    ),
    Refusal(
        ("osdp",), ("collective_matmul",), "parallel.tensor.collective_matmul",
        "it is not built with osdp, which may cut the weights of products into slices", "leave it, or osdp, out",
    ),
    Refusal(
        ("osdp",), ("latent_attention",), f"{_DATA}.osdp",
        "osdp is not built with latent_attention: it handles only one projection to queries, keys and values",
        "leave it out, or write zero_stage: 3",
    ),
)  # fmt: skip

_OF_SHARDING: Final = (
    Refusal(
        ("offload",), ("shard_degree",), f"{_DATA}.offload",
        "it is not built for groups of replicas, whose sums of shards would have to leave the host again",
        "leave it, or shard_degree, out",
    ),
    *(
        Refusal(("tiered",), (other,), f"{_DATA}.{key}", f"{key} is not built with memory.manager{why}", "leave it out")
        for other, key, why in (
            ("shard_degree", "shard_degree", ": sums of shards would have to leave the host again"),
            ("local_degree", "local_degree", ": every rank loads its own piece of a unit, and all gather at once"),
            ("reshard_after_forward", "reshard_after_forward", ", which says itself when units leave the device"),
            ("sync_once", "gradient_sync", ": the host adds up the gradients of micro-batches"),
        )
    ),
    Refusal(
        ("tiered",), ("tied_over_ranks",), "model.tied_embeddings",
        "the host's sums of the tied table would have to leave it again, to the other pipeline rank",
        "write tied_embeddings: false, or leave memory out",
    ),
    Refusal(
        ("offload",), ("tied_over_ranks",), "model.tied_embeddings",
        "the host's sums of the tied table would have to leave it again, to the other pipeline rank",
        "write tied_embeddings: false, or leave offload out",
    ),
    Refusal(
        ("tiered",), ("fp8",), "training.precision", "fp8 is not built with memory.manager",
        "write precision: bf16, or leave memory out",
    ),
    Refusal(
        _SHARDED, ("blocking_sync",), f"{_DATA}.overlap_gradient_sync",
        "ZeRO stage {zero_stage} frees gradients as backward goes on: there is no blocking synchronisation",
        "leave it out, or write zero_stage: 1",
    ),
    Refusal(
        ("zero_2",), _IN_PARTS, f"{_DATA}.gradient_sync",
        "the backwards of {schedule} come in parts, so gradients are not sharded after each",
        "write gradient_sync: last_microbatch, or zero_stage: 1",
        unless="sync_once",
    ),
    *(
        Refusal(
            (stage,), schedules, f"{_DATA}.zero_stage",
            "ZeRO stage {zero_stage} is not built for {schedule}: its backwards come in parts, or the model in copies",
            f"write zero_stage: 1, or schedule: {_WHOLE}",
        )
        for stage, schedules in (("zero_2", ("two_copies",)), ("zero_3", (*_IN_PARTS, "two_copies")))
    ),
    Refusal(
        ("zero_3",), ("bucket",), f"{_DATA}.bucket",
        "ZeRO stage 3 gathers and reduces layer by layer, so there are no buckets",
        "leave it out, or write zero_stage: 2",
    ),
    Refusal(
        ("parameter_gather",), ("aiao",), f"{_DATA}.overlap_parameter_gather",
        "aiao leaves gathers to the next step's forwards by itself", "leave it out",
    ),
)  # fmt: skip


def _of_passes(key: Literal["prescale_gradients", "check_gradients"]) -> Iterator[Refusal]:
    """Yield the refusals of a pass over the gradients."""
    rule = "passes over the gradients are built for the end of a step, where nothing else runs, not for"
    for others, how in (
        (("osdp",), "osdp"),
        (_SHARDED, "zero_stage {zero_stage}"),
        (("aiao", "delayed"), "schedule {schedule}"),
        (("local",), "method local"),
    ):
        yield Refusal((key,), others, f"training.{key}", f"{rule} {how}", "leave it out")
    remedy = "leave it out, or overlap_gradient_sync: false"
    yield Refusal((key,), ("overlapped_sync",), f"training.{key}", f"{rule} overlap_gradient_sync", remedy)


_OF_NUMBERS: Final = (
    *(
        Refusal(
            ("set_gradients_to_none",), others, "training.set_gradients_to_none",
            f"{how} adds gradients up in shards that are there from step to step",
            "leave it out, or write zero_stage: 1",
        )
        for others, how in ((("osdp",), "osdp"), (_SHARDED, "zero_stage {zero_stage}"))
    ),
    *_of_passes("prescale_gradients"),
    *_of_passes("check_gradients"),
    Refusal(
        ("fp8",), ("osdp",), f"{_DATA}.osdp",
        "osdp weighs operators by the bytes and the time of their own type, not of casts to eight bits",
        "write zero_stage: 3 without osdp, or precision: bf16",
    ),
    Refusal(
        ("fp8",), ("delayed",), SCHEDULE_KEY,
        "fp8 casts one version of the weights, and this schedule keeps two",
        "write schedule: 1f1b, or precision: bf16",
    ),
)  # fmt: skip

_OF_EXPERTS: Final = (
    *(
        Refusal(("experts",), (other,), key, rule, f"{remedy}, or leave model.experts out")
        for other, key, rule, remedy in (
            ("local", "training.method", "local updates are not built for experts", "write method: backprop"),
            ("osdp", f"{_DATA}.osdp", "osdp is not built for experts", "leave it out"),
            (
                "token_slices", SLICES_KEY,
                "experts have slots for the tokens of a whole micro-batch, and slices of it are not built",
                "choose a schedule without slices, as 1f1b",
            ),
        )
    ),
    Refusal(
        ("expert_parallel",), ("local_degree",), f"{_DATA}.local_degree",
        "gathers in two levels are not built for ranks that share out experts",
        f"leave it out, or write {_EXPERT_KEY}: 1",
    ),
    Refusal(
        ("expert_parallel",), ("aiao", "delayed"), SCHEDULE_KEY,
        "{schedule} is not built for ranks that share out experts",
        f"write schedule: 1f1b, or {_EXPERT_KEY}: 1",
    ),
)  # fmt: skip

_IN_BLOCKS: Final = ("tensor_2d", "tensor_2_5d", "tensor_3d")
_METHOD_KEY: Final = "parallel.tensor.method"

_OF_BLOCKS: Final = (
    Refusal(
        _IN_BLOCKS, ("scatter_gather",), "parallel.pipeline.scatter_gather",
        "with method {tensor_method} no rank holds a whole boundary tensor that could be cut", "leave it out",
    ),
    *(
        Refusal(_IN_BLOCKS, (other,), _METHOD_KEY, f"method {{tensor_method}} is not built for {what}", remedy)
        for other, what, remedy in (
            ("experts", "experts, whose router reads whole tokens", "write method: 1d"),
            ("latent_attention", "latent attention, whose latents every rank holds whole", "write method: 1d"),
            ("fp8", "fp8", "write method: 1d, or precision: bf16"),
            ("osdp", "osdp, which may cut the weights of products into slices", "write method: 1d, or leave osdp out"),
        )
    ),
    Refusal(
        _IN_BLOCKS, _SHARDED, f"{_DATA}.zero_stage",
        "ZeRO stage {zero_stage} is not built for method {tensor_method}", "write zero_stage: 1, or method: 1d",
    ),
)  # fmt: skip

REFUSALS: Final = (
    *_OF_OSDP[-2:], *_OF_CONTEXT, *_OF_WINDOWS, *_OF_SCHEDULES, *_OF_OSDP[:-2], *_OF_SHARDING, *_OF_NUMBERS,
    *_OF_EXPERTS, *_OF_BLOCKS,
)  # fmt: skip
"""All refused pairs. If a strategy has several, the error names the first."""


def first_refusal(used: frozenset[str]) -> Refusal | None:
    """Return the first refusal of a set of techniques; None if all go together."""
    return next((refusal for refusal in REFUSALS if refusal.refuses(used)), None)


def check_combinations(strategy: Strategy) -> None:
    """Raise SpecError for the first pair of techniques that is not built together."""
    refusal = first_refusal(used_by(strategy))
    if refusal is not None:
        raise refusal.error(strategy)


class Verdict(Struct, frozen=True):
    """Whether two techniques are built together.

    ``used``: both techniques and those that they need; empty if no scenario can use both, because they are, or need,
    two values of one key. ``refusal``: the reason against the pair; None if it is built.
    """

    used: frozenset[str]
    refusal: Refusal | None


def verdict_on(one: str, other: str) -> Verdict:
    """Return whether two techniques are built together, in the first of the ways to use both that is built."""
    ways = [a | b for a, b in product(with_needs(one), with_needs(other)) if is_possible(a | b)]
    verdicts = [Verdict(used, first_refusal(used)) for used in ways]
    built = (verdict for verdict in verdicts if verdict.refusal is None)
    return next(built, verdicts[0] if verdicts else Verdict(frozenset(), None))
