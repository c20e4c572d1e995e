"""A pass of a trained model over new tokens of several sequences, whose earlier tokens left keys and values in caches.

The tokens lie one sequence after the other, as rows of tensors [tokens, 1, ...]. Caches have a row per slot. Every
sequence has slots of its own, in a row, as many as its last pass needs, up to whole blocks. Nothing is differentiated.
"""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from sim.plan.functions.rows import Rows
from sim.plan.functions.token_part import Scoring
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.layout import Layout, Shard
from sim.plan.words.op import Compute


class Span(Struct, frozen=True):
    """New tokens of a sequence: ``num_tokens`` from position ``start`` on. ``slot``: of the sequence's first token."""

    slot: int
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        """Return the number of the sequence's tokens after the pass."""
        return self.start + self.num_tokens


class CachedTokens(Struct, frozen=True):
    """The new tokens of pass number ``index``. ``num_slots``: of the caches.

    ``kernel``: attention for prompts, or for few tokens per sequence. ``cache_dtype``: of the caches; empty: of what is
    written.
    """

    index: int
    spans: tuple[Span, ...]
    num_slots: int
    kernel: Literal["cached_attention", "decode_attention"]
    cache_dtype: str = ""

    @property
    def label(self) -> str:
        """Return the suffix of the names of its tasks and buffers."""
        return f"@{self.index}"

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of all sequences."""
        return sum(span.num_tokens for span in self.spans)

    @property
    def rows(self) -> Rows:
        """Return the positions of the tokens in their sequences."""
        runs = tuple((span.start, span.num_tokens) for span in self.spans)
        return Rows(self.num_tokens, self.num_tokens, runs=runs)

    @property
    def last_rows(self) -> tuple[int, ...]:
        """Return the row of each sequence's last token."""
        ends, total = [], 0
        for span in self.spans:
            total += span.num_tokens
            ends.append(total - 1)
        return tuple(ends)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Return the first slot and the number of the new tokens of each sequence."""
        return tuple((span.slot + span.start, span.num_tokens) for span in self.spans)

    def cached(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        """Write the rows of x[tokens, ...] into their slots of the cache ``name``; return the cache."""
        shape, known = (self.num_slots, *x.shape[1:]), name in t.program.buffers
        dtype = self.cache_dtype or x.dtype
        if not known:
            t.program.add_buffer(Buffer(name, shape, dtype, Kind.CACHE, t.scope))
        reads = (x.name, name) if known else (x.name,)
        attributes = {"places": self.places, "rows": self.num_slots} | ({"dtype": dtype} if dtype != x.dtype else {})
        t.emit(Compute(t.unique(f"{name}.append"), "append", reads, (name,), attributes))
        return Tensor(name, shape, dtype, x.layout)

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return the attention of the tokens' queries to the cached keys and values, as one kernel."""
        assert scoring == Scoring(fused=True), (
            "attention to caches is causal and fused, without window, cap and dropout"
        )
        return self.attend(t, name, qkv)

    @property
    def is_whole(self) -> bool:
        """Return whether these are all tokens of their sequences so far."""
        return all(span.start == 0 for span in self.spans)

    def attend_to_own(self, t: TaskTracer, name: str, qkv: Sequence[Tensor]) -> Tensor:
        """Return the attention of queries to keys and values [tokens, 1, ...] of these tokens themselves."""
        firsts = [last + 1 - span.num_tokens for last, span in zip(self.last_rows, self.spans, strict=True)]
        spans = tuple((first, span.num_tokens, span.num_tokens) for first, span in zip(firsts, self.spans, strict=True))
        (y,) = t.compute(name, self.kernel, qkv, (qkv[0].layout,), spans=spans)
        return y

    def attend(
        self, t: TaskTracer, name: str, qkv: Sequence[Tensor], kernel: str | None = None, **attributes: Any
    ) -> Tensor:
        """Return the attention of queries [tokens, 1, n, d] to caches.

        ``kernel``: one for caches of its own; None: that of the pass. ``attributes``: further ones of the kernel.
        """
        spans = tuple((span.slot, span.end, span.num_tokens) for span in self.spans)
        (y,) = t.compute(name, kernel or self.kernel, qkv, (qkv[0].layout,), spans=spans, **attributes)
        return y


def prompt_tokens(t: TaskTracer, name: str, spans: Sequence[Span], *, vocabulary: int, axes: Sequence[str]) -> Tensor:
    """Return the token ids [tokens, 1] of spans, one for each of this rank's sequences.

    ``axes``: mesh axes that split sequences. The first gives micro-batches to ranks.
    """
    runs = tuple((span.start, span.num_tokens) for span in spans)
    layout = Layout(tuple((axis, Shard(1)) for axis in axes))
    (ids,) = t.compute(name, "prompt_tokens", (), (layout,), runs=runs, vocab_size=vocabulary)
    return ids


def last_rows(t: TaskTracer, name: str, x: Tensor, tokens: CachedTokens) -> Tensor:
    """Return the rows of x[tokens, 1, h] of each sequence's last token."""
    if tokens.last_rows == tuple(range(x.shape[0])):
        return x
    (y,) = t.compute(name, "take_rows", (x,), (x.layout,), rows=tokens.last_rows)
    return y


def most_likely(t: TaskTracer, name: str, logits: Tensor) -> Tensor:
    """Return the ids [tokens, 1] of the words with the largest logits[tokens, 1, V], gathered over ranks if cut."""
    for axis in logits.layout.shard_axes(2):
        logits = t.gather(logits, axis, 2, Kind.ACTIVATION)
    (ids,) = t.compute(name, "most_likely", (logits,), (logits.layout,))
    return ids
