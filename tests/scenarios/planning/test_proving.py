"""In which order a search asks for simulations, and how many."""

import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest

from scenarios.planning.openings import openings_of
from scenarios.planning.proof import Proof
from scenarios.planning.proving import done, fits, front_rows, prove_all, prove_best
from scenarios.planning.request import Goal, Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import search
from scenarios.planning.studied import Studied, studied_of
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.sweep.workers import ThisProcess

SMALL = """
name: small
seed: 0
cluster: {node: hgx-h100, num_nodes: 1}
model:
  {family: gpt, num_layers: 8, hidden_size: 1024, num_heads: 16, sequence_length: 512, vocab_size: 8192}
training: {global_batch_size: 64, recompute: none}
parallel: {tensor: {degree: 2}}
"""
NUM_PROOFS = 3


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model on one node."""
    path = tmp_path_factory.mktemp("proving") / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def studied(scenario: Path) -> Studied:
    """The estimates of its strategies."""
    return studied_of(openings_of(read_document(scenario)), ThisProcess())


def outcome_of(studied: Studied, row: int) -> Proof:
    """A made-up simulation: up to a fifth off the estimate, and every seventh strategy has no room."""
    off = 0.9 + 0.2 * zlib.crc32(bytes([row % 256, row // 256])) / 2**32
    memory_bytes = int(studied.estimates.memory_bytes[row])
    return Proof(memory_bytes) if row % 7 == 0 else Proof(memory_bytes, off * float(studied.estimates.time_s[row]))


def at_once(studied: Studied) -> Callable[[int, float], Future[Proof | str]]:
    """Answers that are there when they are asked for."""
    return lambda row, _: done(outcome_of(studied, row))


def test_the_answer_does_not_depend_on_what_ends_first(studied: Studied) -> None:
    """Answers that come late, and in another order than they were asked for, lead to the same strategies."""
    asked = list[int]()

    def late(row: int) -> Proof | str:
        sleep(0.004 * (row % 3))
        return outcome_of(studied, row)

    with ThreadPoolExecutor(NUM_PROOFS) as threads:

        def ask(row: int, _: float) -> Future[Proof | str]:
            asked.append(row)
            return threads.submit(late, row)

        tried = prove_best(studied, "time", NUM_PROOFS, ask)
    assert [row for row, _ in tried] == asked
    assert tried == prove_best(studied, "time", NUM_PROOFS, at_once(studied))


def test_a_search_tries_so_many_and_some_of_the_front(studied: Studied) -> None:
    """At most four times ``num_proofs`` and two of the front are tried, none twice; enough fit, and some are of it."""
    tried = prove_best(studied, "time", NUM_PROOFS, at_once(studied))
    rows = [row for row, _ in tried]
    assert len(rows) == len(set(rows)) <= 4 * NUM_PROOFS + 2
    assert sum(fits(outcome) for _, outcome in tried) >= NUM_PROOFS
    by_memory = front_rows(studied, (studied.estimates.memory_bytes <= studied.room_bytes).nonzero()[0])
    assert len(set(rows) & set(by_memory.tolist())) > 1


def test_all_strategies_are_tried_once(studied: Studied) -> None:
    """An exhaustive search asks for every row."""
    tried = prove_all(studied, "time", at_once(studied))
    assert sorted(row for row, _ in tried) == list(range(len(studied.grid)))


@pytest.mark.parametrize("goal", ["time", "memory"])
def test_the_best_plan_has_an_interval(goal: Goal, scenario: Path) -> None:
    """Whatever is best: its time is given with an interval, and no other plan's time needs one."""
    fixed = ["parallel.pipeline.degree=1", "parallel.data.zero_stage=1", "training={global_batch_size: 16}"]
    best, *others = search(scenario, fixed, Request(goal=goal, num_proofs=1), Resources(ThisProcess())).summary.plans
    assert best.iteration_time_interval_s is not None
    low_s, high_s = best.iteration_time_interval_s
    assert low_s < best.iteration_time_s < high_s
    assert goal == "time" or all(plan.iteration_time_interval_s is None for plan in others)
