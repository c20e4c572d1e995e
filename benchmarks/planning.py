"""The accuracy of the planner: errors of its estimates against the engine, and losses of its choices.

Models and clusters are random functions of a case number. ``--first``: the first case number. ``--schedules``: those
that are searched. ``--hosts``: cases of strategies with state on hosts, which are estimated apart.
``python -m benchmarks.planning --estimates 250 --optima 200`` prints the table, in some 30 minutes on one core.
"""

import math
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import yaml

from benchmarks.measuring import Row, markdown
from scenarios.errors import ScenarioError
from scenarios.planning.openings import KEYS, openings_of
from scenarios.planning.pricing import priced
from scenarios.planning.proof import Proof, prove
from scenarios.planning.proving import done, prove_all, prove_best, prover
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.studied import rows_with_prices, studied_of
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.sweep.workers import ThisProcess
from sim.planner.estimating import estimate
from sim.planner.space import OFFLOADS, RECOMPUTE, SCHEDULES, SEARCHED, OffloadChoice, grid
from sim.training.pipeline.rules import Schedule

NODES: Final = ("dgx-1-v100-16g", "dgx-a100-40g", "dgx-a100-80g", "cloud-a100-100g", "hgx-h100", "dgx-b200", "longhorn")
MOST_SIMULATED: Final = 40
"""Largest number of strategies in a space that is simulated as a whole."""
_ON_DEVICE: Final = {"offload": [0]}
"""Spaces that are simulated as a whole keep the optimizer on the device."""
PER_CASE: Final = 2
"""Number of strategies per case whose estimates are compared."""

_ON_HOSTS: Final[Mapping[OffloadChoice, str]] = {"optimizer": "the optimizer", "state": "all state"}

Schedules = tuple[Schedule, ...]
"""Pipeline schedules that are searched."""


def random_case(number: int) -> dict[str, Any]:
    """Return a scenario without a strategy: a small model on one to four nodes of the catalogue."""
    draw = Random(number)
    head_size = draw.choice((64, 128))
    num_heads = draw.choice((8, 12, 16, 24, 32))
    experts = (
        {"num_experts": draw.choice((4, 8)), "top_k": 2, "ffn_hidden_size": 2 * head_size * num_heads}
        if draw.random() < 0.2
        else None
    )
    num_nodes = draw.choice((1, 1, 2, 4))
    return {
        "name": f"case {number}",
        "seed": 0,
        "cluster": {"node": draw.choice(NODES), "num_nodes": num_nodes},
        "model": {
            "family": draw.choice(("gpt", "llama")),
            "num_layers": draw.choice((4, 6, 8, 12, 16, 24)),
            "hidden_size": head_size * num_heads,
            "num_heads": num_heads,
            "vocab_size": draw.choice((16_000, 32_000, 50_304, 128_256)),
            "ffn_hidden_size": 4 * head_size * num_heads,
            "sequence_length": draw.choice((512, 1024, 2048, 4096)),
            **({"experts": experts} if experts else {}),
        },
        "training": {"global_batch_size": draw.choice((8, 16, 32, 64)) * num_nodes},
    }


def disagreements(
    number: int, folder: Path, schedules: Schedules = SEARCHED, places: Sequence[OffloadChoice] = ("none", "optimizer")
) -> Iterator[tuple[float, float]]:
    """Yield the relative errors of the estimated time and memory of random strategies of a case.

    ``places``: of the state, on devices or hosts.
    """
    document = apply_overrides(read_document(_written(number, folder)), ["memory.manager=auto"])
    openings = openings_of(document, schedules)
    every = grid({**openings.choices(), "offload": [OFFLOADS.index(place) for place in places]}, openings.sizes)
    chosen = np.zeros(len(every), dtype=np.bool_)
    chosen[np.random.default_rng(number).permutation(len(every))[:PER_CASE]] = True
    found = priced(openings, every.rows(chosen), ThisProcess())
    valued = rows_with_prices(every.rows(chosen), found)
    if not len(valued):
        return
    estimates = estimate(valued, found.prices)
    for row in range(len(valued)):
        proof = prove(openings.scenario(valued.strategy(row)), sys.maxsize)
        if isinstance(proof, Proof) and proof.time_s is not None:
            time_s, memory_bytes = estimates.time_s[row], estimates.memory_bytes[row]
            yield abs(time_s / proof.time_s - 1.0), abs(memory_bytes / proof.memory_bytes - 1.0)


def loss(number: int, folder: Path, most: int = MOST_SIMULATED, schedules: Schedules = SEARCHED) -> float | None:
    """Return the relative loss of the search's choice against the fastest strategy; None if no strategy fits.

    Some keys of the case are fixed to random values, until at most ``most`` strategies are left. All of them are
    simulated. The search reads the results of those that it asks for.
    """
    path = _written(number, folder)
    try:
        document = apply_overrides(read_document(path), fixed_keys(number, path, most, schedules))
        studied = studied_of(openings_of(document, schedules), ThisProcess(), _ON_DEVICE)
    except ScenarioError:
        return None
    known = dict(prove_all(studied, "time", prover(studied, Resources(ThisProcess()))))
    tried = prove_best(studied, "time", Request().num_proofs, lambda row, _: done(known[row]))
    best, pick = (_fastest_s(outcomes) for outcomes in (known.values(), dict(tried).values()))
    if best is None:
        return None
    return math.inf if pick is None else pick / best - 1.0


def _fastest_s(outcomes: Iterable[Proof | str]) -> float | None:
    times_s = [outcome.time_s for outcome in outcomes if isinstance(outcome, Proof)]
    return min((time_s for time_s in times_s if time_s is not None), default=None)


def fixed_keys(number: int, path: Path, most: int, schedules: Schedules) -> list[str]:
    """Return the fewest overrides of a strategy's keys that leave at most ``most`` strategies.

    Schedule and stages per rank stay open.
    """
    draw, document = Random(number), read_document(path)
    names = [name for name in KEYS if name not in ("data", "schedule", "virtual_stages", "offload")]
    draw.shuffle(names)
    fixed: list[str] = []
    while True:
        openings = openings_of(apply_overrides(document, fixed), schedules)
        every = grid({**openings.choices(), **_ON_DEVICE}, openings.sizes)
        if len(every) <= most or not names:
            return fixed
        name = names.pop()
        value = int(draw.choice(getattr(every, name).tolist()))
        fixed.append(f"{KEYS[name]}={RECOMPUTE[value] if name == 'recompute' else value}")


def _written(number: int, folder: Path) -> Path:
    path = folder / f"case-{number}.yaml"
    path.write_text(yaml.safe_dump(random_case(number)), encoding="utf-8")
    return path


def rows(cases: Mapping[str, int], first: int, schedules: Schedules) -> Iterator[Row]:
    """Yield the rows of the table: estimates of random strategies, and losses of the search's choices.

    ``cases``: how many, for each of the options that say so.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        pairs = [p for n in range(cases["estimates"]) for p in disagreements(first + n, folder, schedules)]
        yield from _estimate_rows("random strategies", pairs)
        for place in OFFLOADS[1:]:
            pairs = [p for n in range(cases["hosts"]) for p in disagreements(first + n, folder, schedules, [place])]
            yield from _estimate_rows(f"random strategies with {_ON_HOSTS[place]} on hosts", pairs)
        losses = list(_losses(range(first, first + cases["optima"]), folder, schedules))
    if losses:
        yield _optima_row(losses)


def _estimate_rows(of: str, pairs: Sequence[tuple[float, float]]) -> Iterator[Row]:
    """Yield the rows of errors of time and memory, none where there are no strategies."""
    for name, values in zip(("time", "memory"), zip(*pairs, strict=True), strict=False):
        middle, high, most = np.quantile(values, (0.5, 0.95, 1.0)).tolist()
        words = f"median {middle:.1%}, 95th percentile {high:.1%}, worst {most:.1%}"
        within = middle <= 0.05 and high <= 0.15
        yield Row(f"estimated {name} of {len(values)} {of}", words, "5 %, 15 %", within)


def _losses(cases: Iterable[int], folder: Path, schedules: Schedules) -> Iterator[float]:
    """Yield the losses of cases in which something fits, and tell each as it comes: all take long."""
    for case in cases:
        found = loss(case, folder, schedules=schedules)
        words = "nothing fits" if found is None else f"{found:.2%} slower than the fastest"
        print(f"case {case}: {words}", file=sys.stderr, flush=True)
        if found is not None:
            yield found


def _optima_row(losses: Sequence[float]) -> Row:
    best = sum(value < 1e-9 for value in losses) / len(losses)
    words = f"the fastest in {best:.1%}, worst {max(losses):.1%} slower"
    return Row(
        f"the search's pick in {len(losses)} random cases", words, "95 %, 2 %", best >= 0.95 and max(losses) <= 0.02
    )


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--estimates", type=int, default=250)
    parser.add_argument("--optima", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=SEARCHED)
    given = parser.parse_args()
    print(markdown(list(rows(vars(given), given.first, tuple(given.schedules)))))
