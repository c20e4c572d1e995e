"""Step lists on real tensors, ranks as threads: every algorithm, group size, chunk size and placement on nodes."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from backends.execution.errors import ExecutionError
from backends.execution.request import ExplicitCollectives
from backends.torch.communication import algorithms
from backends.torch.communication.algorithms import num_chunks, numbering, rounds_of
from backends.torch.communication.collectives import Message, SteppedCollectives
from costmodels.collectives.catalogue import STEP_LISTS, collective_steps
from costmodels.collectives.steps import StepList
from sim.plan.words.op import Reduction

CASES = [(kind, algorithm) for kind, algorithms in STEP_LISTS.items() for algorithm in algorithms]
PATIENCE_S = 10.0
Result = Tensor | None
Work = Callable[[SteppedCollectives], Result]


class Wires:
    """In-order channels between the ranks of one process."""

    def __init__(self, size: int) -> None:
        self._queues = {(s, t): SimpleQueue[Tensor | None]() for s in range(size) for t in range(size)}

    def of(self, rank: int) -> Callable[[Sequence[Message], Sequence[Message]], None]:
        """Return the exchange of one rank."""

        def exchange(outgoing: Sequence[Message], incoming: Sequence[Message]) -> None:
            for peer, tensor in outgoing:
                self._queues[rank, peer].put(tensor.clone())
            for peer, tensor in incoming:
                arrived = self._queues[peer, rank].get(timeout=PATIENCE_S)
                if arrived is None:
                    raise Empty
                assert arrived.shape == tensor.shape
                tensor.copy_(arrived)

        return exchange

    def cut(self, rank: int) -> None:
        """Let nobody wait for a rank that failed."""
        for (sender, _), queue in self._queues.items():
            if sender == rank:
                queue.put(None)

    @property
    def empty(self) -> bool:
        """Return whether all that was sent was received."""
        return all(queue.empty() for queue in self._queues.values())


def run(nodes: tuple[int, ...], explicit: ExplicitCollectives, work: Work) -> tuple[list[Result], int]:
    """Return what every rank's work gives, and the bytes that all of them sent."""
    wires = Wires(len(nodes))
    groups = [SteppedCollectives(wires.of(rank), rank, nodes, explicit) for rank in range(len(nodes))]

    def guarded(group: SteppedCollectives) -> Result:
        try:
            return work(group)
        except BaseException:
            wires.cut(group.position)
            raise

    with ThreadPoolExecutor(len(nodes)) as pool:
        futures = [pool.submit(guarded, group) for group in groups]
    results = [future.result() for future in futures]
    assert wires.empty
    return results, sum(group.sent_bytes for group in groups)


def terms(size: int, *shape: int) -> list[Tensor]:
    """Return another random tensor per rank."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(size)]


def total(tensors: Sequence[Tensor], reduction: Reduction) -> Tensor:
    """Return the reduction of all."""
    stacked = torch.stack(list(tensors))
    return stacked.sum(0) if reduction is Reduction.SUM else stacked.amax(0)


def outcome(
    kind: str, nodes: tuple[int, ...], explicit: ExplicitCollectives, n: int, root: int, reduction: Reduction
) -> tuple[list[Result], list[Result], int]:
    """Return what every rank has after a collective of n elements, what it must have, and the bytes sent."""
    g = len(nodes)
    if kind in {"all_reduce", "reduce", "broadcast"}:
        given = terms(g, n)

        def vector(group: SteppedCollectives) -> Result:
            flat = given[group.position].clone()
            if kind == "all_reduce":
                group.all_reduce(flat, reduction)
            elif kind == "reduce":
                group.reduce(flat, root, reduction)
            else:
                group.broadcast(flat, root)
            return flat if kind != "reduce" or group.position == root else None

        wanted = given[root] if kind == "broadcast" else total(given, reduction)
        results, sent = run(nodes, explicit, vector)
        return results, [wanted if kind != "reduce" or r == root else None for r in range(g)], sent
    if kind == "all_gather":
        pieces = terms(g, n)
        results, sent = run(nodes, explicit, lambda group: _gathered(group, pieces))
        return results, [torch.stack(pieces)] * g, sent
    if kind == "reduce_scatter":
        rows = terms(g, g, n)
        results, sent = run(nodes, explicit, lambda group: _scattered(group, rows, reduction))
        return results, list(total(rows, reduction)), sent
    if kind == "all_to_all":
        table = [[(3 * s + 5 * t + n) % (n + 1) for t in range(g)] for s in range(g)]
        blocks = [[torch.full((table[s][t],), 100.0 * s + t, dtype=torch.float64) for t in range(g)] for s in range(g)]
        results, sent = run(nodes, explicit, lambda group: _exchanged(group, blocks, table))
        return results, [torch.cat([blocks[s][t] for s in range(g)]) for t in range(g)], sent
    results, sent = run(nodes, explicit, lambda group: group.barrier(torch.device("cpu")))
    return results, [None] * g, sent


def _gathered(group: SteppedCollectives, pieces: Sequence[Tensor]) -> Tensor:
    target = torch.full((group.size, len(pieces[0])), float("nan"), dtype=torch.float64)
    group.all_gather(target, pieces[group.position])
    return target


def _scattered(group: SteppedCollectives, rows: Sequence[Tensor], reduction: Reduction) -> Tensor:
    target = torch.full((rows[0].shape[1],), float("nan"), dtype=torch.float64)
    kept = rows[group.position].clone()
    group.reduce_scatter(target, rows[group.position], reduction)
    assert torch.equal(kept, rows[group.position]), "what is reduced was changed"
    return target


def _exchanged(group: SteppedCollectives, blocks: Sequence[Sequence[Tensor]], table: list[list[int]]) -> Tensor:
    me = group.position
    target = torch.full((sum(row[me] for row in table),), float("nan"), dtype=torch.float64)
    group.all_to_all(target, torch.cat(list(blocks[me])), table)
    return target


def same(results: Sequence[Result], wanted: Sequence[Result]) -> bool:
    """Return whether all ranks have what they must have, to rounding."""
    return all(
        result is None if want is None else result is not None and torch.allclose(result, want, rtol=1e-12, atol=1e-12)
        for result, want in zip(results, wanted, strict=True)
    )


@settings(max_examples=120, deadline=None)
@given(
    case=st.sampled_from(CASES),
    nodes=st.lists(st.integers(0, 3), min_size=1, max_size=9).map(tuple),
    n=st.integers(0, 23),
    root=st.integers(0, 8),
    reduction=st.sampled_from(Reduction),
)
def test_every_algorithm_gives_what_the_collective_promises(
    case: tuple[str, str], nodes: tuple[int, ...], n: int, root: int, reduction: Reduction
) -> None:
    """Up to 9 ranks in any places on nodes, chunks of uneven and no size, any root, sums and maxima.

    Nothing is left on the wires.
    """
    kind, algorithm = case
    explicit = ExplicitCollectives({kind: algorithm})
    results, wanted, _ = outcome(kind, nodes, explicit, n, root % len(nodes), reduction)
    assert same(results, wanted)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_ranks_send_the_bytes_that_the_cost_models_count(kind: str, algorithm: str, size: int) -> None:
    """Sums over the steps: whole chunks where they divide (840 elements), one byte per word of a barrier."""
    case = collective_steps(kind, algorithm, (size,))
    _, _, sent = outcome(kind, (0,) * size, ExplicitCollectives({kind: algorithm}), 840, 0, Reduction.SUM)
    sizes = [840 // case.num_chunks * 8] * case.num_chunks
    if kind in {"all_gather", "reduce_scatter"}:
        sizes = [840 * 8] * size
    elif kind == "all_to_all":
        sizes = [(3 * s + 5 * t + 840) % 841 * 8 for s in range(size) for t in range(size)]
    elif kind == "barrier":
        sizes = [1] * size
    assert sent == sum(sizes[chunk] for step in case.steps for chunk in step.chunks) > 0


def test_numbering_keeps_nodes_together_and_the_root_first() -> None:
    """Ranks of a node follow each other whatever the group's order; a root is number 0 of the first node."""
    assert numbering((0, 1, 0, 1), None).order == (0, 2, 1, 3)
    assert numbering((0, 1, 0, 1), 3).order == (3, 1, 0, 2)
    assert numbering((2, 2, 5, 2), None).ranks_per_node == (3, 1)
    assert numbering((2, 2, 5, 2), 2).ranks_per_node == (1, 3)


def test_a_kind_without_a_choice_takes_its_first_step_list() -> None:
    """Rings, a direct exchange, a dissemination; the node of a rank follows the scenario's."""
    explicit = ExplicitCollectives({"all_reduce": "tree"}, 3)
    assert [explicit.algorithm(kind) for kind in ("all_reduce", "reduce", "all_to_all", "barrier")] == [
        "tree", "ring", "direct", "dissemination",
    ]  # fmt: skip
    assert [explicit.node_of(rank) for rank in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert ExplicitCollectives().node_of(100) == 0


# --- a step that is left out or altered ----------------------------------------------------------------------------


@pytest.fixture
def altered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[StepList], None]]:
    """Put another step list in place of every one that is asked for."""

    def put(case: StepList) -> None:
        forget()
        monkeypatch.setattr(algorithms, "collective_steps", lambda *_: case)

    def forget() -> None:
        rounds_of.cache_clear()
        num_chunks.cache_clear()

    yield put
    forget()


def refused(kind: str, algorithm: str) -> bool:
    """Return whether a collective of four ranks on two nodes fails or gives something wrong."""
    explicit = ExplicitCollectives({kind: algorithm})
    try:
        results, wanted, _ = outcome(kind, (0, 0, 1, 1), explicit, 24, 0, Reduction.SUM)
    except (ExecutionError, Empty, AssertionError):
        return True
    return not same(results, wanted)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_no_step_can_be_left_out(kind: str, algorithm: str, altered: Callable[[StepList], None]) -> None:
    """Without any one step (at both of its ends) a rank ends with wrong numbers, or says what never came."""
    case = collective_steps(kind, algorithm, (2, 2))
    assert not refused(kind, algorithm)
    for i in range(len(case.steps)):
        altered(replace(case, steps=case.steps[:i] + case.steps[i + 1 :]))
        assert refused(kind, algorithm), f"step {case.steps[i]} was not missed"


@pytest.mark.parametrize(("kind", "algorithm"), [c for c in CASES if c[0] not in {"barrier"}])
def test_no_step_can_reduce_where_it_must_not(kind: str, algorithm: str, altered: Callable[[StepList], None]) -> None:
    """A step that adds instead of replacing, or replaces instead of adding, is noticed."""
    case = collective_steps(kind, algorithm, (2, 2))
    for i, step in enumerate(case.steps):
        steps = list(case.steps)
        steps[i] = step._replace(reduce=not step.reduce)
        altered(replace(case, steps=tuple(steps)))
        assert refused(kind, algorithm), f"step {step} was not missed"
