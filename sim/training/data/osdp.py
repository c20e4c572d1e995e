"""OSDP: the choice of sharded operators under a memory limit (Jiang et al., IJCAI 2023).

Every operator is either replicated (DP: one all_reduce of its gradient) or sharded over the N data-parallel ranks (ZDP,
which is ZeRO-3: all_gather of its weights in forward and again in backward, reduce_scatter of its gradient). An
operator may be split into g slices, of which z are sharded; each slice is then an operator of its own. Per step and
rank, for S bytes:

    communication  (N-1) (2g+z) (alpha + S / (g N B))       2 ring passes per replicated slice, 3 per sharded one
    time           communication + b gamma + (g-1) sigma     b samples of gamma seconds each; sigma: a further slice
    held           state ((g-z) + z/N) / g + b activation
    gathered       S/g where z > 0                           one slice at a time is whole

Here alpha is the latency in seconds and B the bandwidth in bytes/s of a ring's step. Whole operators (g = 1) have the
paper's ratio of 2 to 3. Slices cost latency: an operator sharded in g slices pays g times the latency. A plan's time is
the sum over operators (nothing overlaps). Its memory is the sum of the held bytes plus the largest gathered bytes.

The plan of least time is a knapsack for every limit on the gathered bytes: choose, per operator, among the options
within that limit, with the least total time and the held bytes within the rest of the memory. ``cheapest_plan`` solves
it exactly; ``depth_first_plan`` is the paper's search. ``best_plan`` increases the batch until no plan fits, and
returns the plan of highest throughput b N / time.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from costmodels.units import format_bytes
from sim.training.data.knapsack import ROUNDING, Item, Knapsack
from sim.training.spec.parallelism.sharding import Choice as Choice


class OperatorError(ValueError):
    """An invalid operator or an invalid set of ranks; the message names the rule."""


class MemoryLimitError(ValueError):
    """No plan fits. ``least_bytes``: needed by the smallest plan; ``missing_bytes``: its excess over the limit."""

    def __init__(self, least_bytes: int, limit_bytes: int, num_samples: int) -> None:
        self.least_bytes = least_bytes
        self.missing_bytes = least_bytes - limit_bytes
        super().__init__(
            f"with {num_samples} samples per rank no plan fits into {format_bytes(limit_bytes)}: the smallest needs "
            f"{format_bytes(least_bytes)}, so {format_bytes(self.missing_bytes)} are missing; use more ranks, "
            "fewer samples or more slices"
        )


REPLICATED: Final = Choice(1, 0)
SHARDED: Final = Choice(1, 1)


class Operator(Struct, frozen=True, kw_only=True):
    """Parameters that are replicated or sharded as one.

    ``parameter_bytes``: S, the bytes of one collective.
    ``state_bytes``: parameters, gradients and optimizer state of the whole operator.
    ``activation_bytes`` and ``compute_s``: per sample, forward and backward together.
    ``slices``: the allowed numbers of slices; the paper splits linear layers along their input.
    ``slice_s``: seconds that each slice after the first adds to a step.
    """

    name: str
    parameter_bytes: int
    state_bytes: int
    activation_bytes: int = 0
    compute_s: float = 0.0
    slices: tuple[int, ...] = (1,)
    slice_s: float = 0.0

    def __post_init__(self) -> None:
        sizes = (self.parameter_bytes, self.state_bytes, self.activation_bytes, self.compute_s, self.slice_s)
        if not all(size >= 0 and math.isfinite(size) for size in sizes):
            raise OperatorError(f"{self.name}: a size or time is negative or not finite: {sizes}")
        if not self.slices or min(self.slices) < 1:
            raise OperatorError(f"{self.name}: numbers of slices are {self.slices}; give some, each 1 or more")


class Ranks(Struct, frozen=True, kw_only=True):
    """Data-parallel ranks: their number, their ring (latency and bandwidth of a step), and the memory of one rank.

    ``gathered_copies``: 1 counts gathered weights, as the paper does; 2 also counts their gradient before the
        reduce_scatter.
    """

    num_ranks: int
    latency_s: float
    bytes_per_s: float
    memory_bytes: int
    gathered_copies: int = 1

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.memory_bytes < 0 or self.gathered_copies < 1:
            raise OperatorError(f"no ranks, no copies or a negative memory: {self}")
        if not (self.latency_s >= 0.0 and math.isfinite(self.latency_s) and self.bytes_per_s > 0.0):
            raise OperatorError(f"latency must be finite and not negative, bandwidth positive: {self}")


class ShardingPlan(Struct, frozen=True):
    """A choice per operator and its cost: seconds per step, bytes at the peak, samples per rank and step."""

    choices: tuple[Choice, ...]
    step_s: float
    peak_bytes: int
    num_samples: int
    num_ranks: int

    @property
    def samples_per_s(self) -> float:
        """Return the throughput of all ranks; infinite where a step takes no time."""
        return self.num_samples * self.num_ranks / self.step_s if self.step_s else math.inf


# --- cost --------------------------------------------------------------------------------------------------


def communication_s(operator: Operator, choice: Choice, ranks: Ranks) -> float:
    """Return (N-1)(2g+z)(alpha + S/(gNB)) in seconds."""
    piece_bytes = operator.parameter_bytes / (choice.num_slices * ranks.num_ranks)
    passes = 2 * choice.num_slices + choice.num_sharded
    return (ranks.num_ranks - 1) * passes * (ranks.latency_s + piece_bytes / ranks.bytes_per_s)


def time_s(operator: Operator, choice: Choice, ranks: Ranks, num_samples: int) -> float:
    """Return an operator's time per step in seconds."""
    compute_s = num_samples * operator.compute_s + (choice.num_slices - 1) * operator.slice_s
    return communication_s(operator, choice, ranks) + compute_s


def state_bytes(operator: Operator, choice: Choice, ranks: Ranks) -> int:
    """Return a rank's part of an operator's model state in bytes, rounded up: state ((g-z) + z/N)/g."""
    g, z, n = choice.num_slices, choice.num_sharded, ranks.num_ranks
    return -(-operator.state_bytes * ((g - z) * n + z) // (g * n))


def gathered_bytes(operator: Operator, choice: Choice, ranks: Ranks) -> int:
    """Return the bytes that a sharded operator gathers for a while, rounded up: S/g per copy; 0 if replicated."""
    if not choice.num_sharded:
        return 0
    return -(-operator.parameter_bytes // choice.num_slices) * ranks.gathered_copies


def evaluate(operators: Sequence[Operator], choices: Sequence[Choice], ranks: Ranks, num_samples: int) -> ShardingPlan:
    """Return the cost of given choices, which need not fit the memory.

    Raises OperatorError for an impossible choice.
    """
    pairs = list(zip(operators, choices, strict=True))
    for operator, choice in pairs:
        if not 0 <= choice.num_sharded <= choice.num_slices or choice.num_slices < 1:
            raise OperatorError(f"{operator.name}: {choice.num_sharded} of {choice.num_slices} slices are sharded")
    step_s = math.fsum(time_s(operator, choice, ranks, num_samples) for operator, choice in pairs)
    held = sum(state_bytes(op, choice, ranks) + num_samples * op.activation_bytes for op, choice in pairs)
    peak = held + max((gathered_bytes(op, choice, ranks) for op, choice in pairs), default=0)
    return ShardingPlan(tuple(choices), step_s, peak, num_samples, ranks.num_ranks)


def choices_of(operator: Operator) -> list[Choice]:
    """Return all choices of an operator: replicated whole, or 1..g of g slices sharded."""
    return [REPLICATED, *(Choice(g, z) for g in sorted(set(operator.slices)) for z in range(1, g + 1))]


# --- searches ----------------------------------------------------------------------------------------------


class Option(NamedTuple):
    """Cost of one choice of an operator: bytes held all the time, seconds, bytes gathered for a while."""

    held_bytes: int
    time_s: float
    gathered_bytes: int
    choice: Choice


Options = Sequence[Sequence[Option]]
"""The options of each operator."""


def cheapest(options: Options, memory_bytes: int, gap: float = 0.0) -> list[Choice] | None:
    """Return the choices of least time whose held bytes plus largest gathered bytes fit; None where no choices fit.

    One knapsack is solved per limit on the gathered bytes: the sizes of whole slices, and 0. Limits with the cheapest
    linear relaxation come first, and the search stops once no relaxation is cheaper than the best solution. With
    ``gap`` 0 the result is exact; the work grows with the number of different sums of sizes: small for repeated layers,
    exponential for dozens of operators of odd sizes. With a larger gap the work is polynomial, and the time is at most
    1 + gap times the least.
    """
    if not 0.0 <= gap < math.inf:
        raise OperatorError(f"the gap is {gap}; it must be finite and not negative")
    knapsacks = [_knapsack(options, limit, memory_bytes - limit) for limit in _limits(options)]
    best_s, names = math.inf, None
    for knapsack in sorted(knapsacks, key=lambda knapsack: knapsack.bound):
        if knapsack.bound > best_s * ROUNDING:
            break
        found = knapsack.solve(best_s, gap)
        if found is not None and found.cost < best_s:
            best_s, names = found
    return None if names is None else [row[name].choice for row, name in zip(options, names, strict=True)]


class DepthFirstChoices(NamedTuple):
    """The choices found by the depth-first search, if any, and the number of partial plans that it tried."""

    choices: list[Choice] | None
    num_visited: int


def depth_first(options: Options, memory_bytes: int) -> DepthFirstChoices:
    """Return the same choices as ``cheapest``, by the paper's search.

    Depth first, without partial plans that do not fit.

    The search is exact, and exponential in the number of operators.
    """
    best_s, best, visited = math.inf, None, 0
    stack: list[tuple[int, int, float, tuple[Choice, ...]]] = [(0, 0, 0.0, ())]
    while stack:
        held, gathered, spent_s, choices = stack.pop()
        visited += 1
        if held + gathered > memory_bytes:
            continue
        if len(choices) < len(options):
            for option in reversed(options[len(choices)]):
                more = max(gathered, option.gathered_bytes)
                stack.append((held + option.held_bytes, more, spent_s + option.time_s, (*choices, option.choice)))
        elif spent_s < best_s:
            best_s, best = spent_s, list(choices)
    return DepthFirstChoices(best, visited)


def least_bytes(options: Options) -> int:
    """Return the bytes of the smallest choices."""
    return min(limit + _knapsack(options, limit, 0).least_weight for limit in _limits(options))


def _knapsack(options: Options, gathered_limit: int, budget_bytes: int) -> Knapsack:
    """Return the knapsack of the options that gather at most ``gathered_limit`` bytes."""
    classes = [
        [Item(o.held_bytes, o.time_s, i) for i, o in enumerate(row) if o.gathered_bytes <= gathered_limit]
        for row in options
    ]
    return Knapsack.make(classes, budget_bytes)


def _limits(options: Options) -> list[int]:
    """Return the limits to try on gathered bytes; the lowest is the least within which every operator has a choice."""
    least = max((min(option.gathered_bytes for option in row) for row in options), default=0)
    return sorted({o.gathered_bytes for row in options for o in row if o.gathered_bytes > least} | {least})


# --- plans of the closed form ------------------------------------------------------------------------------


def _options(operators: Sequence[Operator], ranks: Ranks, num_samples: int) -> list[list[Option]]:
    if num_samples < 1:
        raise OperatorError(f"{num_samples} samples per rank; there must be 1 or more")
    return [
        [
            Option(
                state_bytes(op, choice, ranks) + num_samples * op.activation_bytes,
                time_s(op, choice, ranks, num_samples),
                gathered_bytes(op, choice, ranks),
                choice,
            )
            for choice in choices_of(op)
        ]
        for op in operators
    ]


def cheapest_plan(operators: Sequence[Operator], ranks: Ranks, num_samples: int, *, gap: float = 0.0) -> ShardingPlan:
    """Return the plan of least step time that fits, see ``cheapest``. Raises MemoryLimitError where no plan fits."""
    options = _options(operators, ranks, num_samples)
    choices = cheapest(options, ranks.memory_bytes, gap)
    if choices is None:
        raise MemoryLimitError(least_bytes(options), ranks.memory_bytes, num_samples)
    return evaluate(operators, choices, ranks, num_samples)


class DepthFirst(NamedTuple):
    """The plan found by the depth-first search, and the number of partial plans that it tried."""

    plan: ShardingPlan
    num_visited: int


def depth_first_plan(operators: Sequence[Operator], ranks: Ranks, num_samples: int) -> DepthFirst:
    """Return the plan of least step time, by the paper's search. Raises MemoryLimitError as ``cheapest_plan``."""
    options = _options(operators, ranks, num_samples)
    choices, num_visited = depth_first(options, ranks.memory_bytes)
    if choices is None:
        raise MemoryLimitError(least_bytes(options), ranks.memory_bytes, num_samples)
    return DepthFirst(evaluate(operators, choices, ranks, num_samples), num_visited)


def best_plan(
    operators: Sequence[Operator],
    ranks: Ranks,
    *,
    most_samples: int,
    search: Callable[[Sequence[Operator], Ranks, int], ShardingPlan] = cheapest_plan,
) -> ShardingPlan:
    """Return the plan of highest throughput for 1 to ``most_samples`` samples per rank; of equals, the smaller batch.

    More samples never need less memory, so the loop ends at the first batch that does not fit, as in the paper. Raises
    MemoryLimitError where not even one sample fits.
    """
    if most_samples < 1:
        raise OperatorError(f"at most {most_samples} samples per rank; there must be 1 or more")
    best = search(operators, ranks, 1)
    for num_samples in range(2, most_samples + 1):
        try:
            plan = search(operators, ranks, num_samples)
        except MemoryLimitError:
            break
        if plan.samples_per_s > best.samples_per_s:
            best = plan
    return best
