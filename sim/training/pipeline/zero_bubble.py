"""Orders that split backward: inputs (I) at once, weights (W) where the rank would wait (Qi et al. 2023, 2024)."""

from sim.training.pipeline.actions import Action, Order


def zb_h1(num_ranks: int, num_microbatches: int, virtual_stages: int = 1) -> list[Order]:
    """ZB-H1; with v > 1 its interleaved form, as torch's ScheduleInterleavedZeroBubble.

    Rank r starts its first W after r more backwards. With one stage per rank, m >= P and tW <= min(tF, tB), the
    makespan is m(tF+tB+tW) + (P-1)(tF+tB-tW); every rank keeps P micro-batches until their W.
    """
    p, m, v = num_ranks, num_microbatches, virtual_stages
    group = m // max(1, m // p)
    total, orders = m * v, []
    for r in range(p):
        warmup = min((v - 1) * group + p - 1 - r, total)
        forwards = [Action("F", k // group % v * p + r, k // (group * v) * group + k % group) for k in range(total)]
        backwards = [((v - 1 - a.stage // p) * p + r, a.microbatch) for a in forwards]
        order, weights = forwards[:warmup], 0
        for k, (stage, microbatch) in enumerate(backwards):
            order += forwards[warmup + k : warmup + k + 1]
            order.append(Action("I", stage, microbatch))
            if k >= r:
                order.append(Action("W", *backwards[weights]))
                weights += 1
        orders.append(order + [Action("W", *chunk) for chunk in backwards[weights:]])
    return orders


def zb_h2(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """ZB-H2: 2(P-r)-1 forwards first, so that no rank waits between its first forwards and its last backward.

    With m >= 2P-1 and tW <= min(tF, tB), the longest rank span is m(tF+tB+tW) + (P-1)(tF+tB-2tW); 2P-1 micro-batches
    are in memory.
    """
    p, m, orders = num_ranks, num_microbatches, []
    for r in range(p):
        done = min(2 * (p - r) - 1, m)
        order, weights = [Action("F", r, i) for i in range(done)], 0
        for i in range(m):
            order.append(Action("I", r, i))
            if i >= 2 * r:
                order.append(Action("W", r, weights))
                weights += 1
            if done < m:
                order.append(Action("F", r, done))
                done += 1
        orders.append(order + [Action("W", r, i) for i in range(weights, m)])
    return orders


def zb_v(num_ranks: int, num_microbatches: int, _: int = 2) -> list[Order]:
    """ZB-V on the V placement, as torch's ScheduleZBVZeroBubble; for m < 2P-1, the order of m = 2P-1 cut down.

    With tF = tB = tW and m >= 2P-1 no rank waits between its first and last action; every rank keeps 2P chunks.
    """
    orders = []
    for r in range(num_ranks):
        order = _zb_v_of_rank(num_ranks, r, max(num_microbatches, 2 * num_ranks - 1))
        orders.append([action for action in order if action.microbatch < num_microbatches])
    return orders


def _zb_v_of_rank(p: int, r: int, m: int) -> Order:
    queue = OrderWriter({"0": r, "1": 2 * p - 1 - r})
    queue.add("F0", 2 * (p - r) - 1)
    queue.add("F1 F0", r)
    queue.add("F1 I1 W1", p - r)
    while queue.count("F1") < m:
        queue.add("F0 I0 W0 F1 I1 W1" if queue.count("F0") < m else "I0 W0 F1 I1 W1")
    queue.add("I0 I1", r)
    queue.add("I0 W0", p - r)
    queue.add("W1", m - queue.count("W1"))
    queue.add("W0", m - queue.count("W0"))
    return queue.order


class OrderWriter:
    """An order written from words: ``F0`` is the next forward of the rank's stage called 0.

    ``W0`` is the next W of a stage; ``W`` is the W of the oldest I of any stage, or nothing if there is none. In
    ``F0&B1`` the two actions overlap.
    ``stages``: the rank's stages by name.
    ``first``: the first micro-batch of each stage.
    """

    def __init__(self, stages: dict[str, int], first: dict[str, int] | None = None) -> None:
        self.order: Order = []
        self._stages = stages
        self._first = first or dict.fromkeys(stages, 0)
        self._done: dict[str, int] = {}
        self._waiting: list[Action] = []

    def count(self, word: str) -> int:
        """Return the number of actions added for a word; a B counts as an I."""
        return self._done.get(word, 0)

    def add(self, words: str, times: int = 1) -> None:
        """Add the actions of ``words`` in order, ``times`` times."""
        for word in words.split() * times:
            if word == "W":
                self.order += self._waiting[:1]
                del self._waiting[:1]
            elif "&" in word:
                forward, backward = word.split("&")
                self.order += [self._next(forward)._replace(overlaps=True), self._next(backward)]
            else:
                self.order.append(self._next(word))

    def _next(self, word: str) -> Action:
        kind, name = word[0], word[1:]
        counter = f"I{name}" if kind == "B" else word
        action = Action(kind, self._stages[name], self._first[name] + self.count(counter))
        self._done[counter] = self.count(counter) + 1
        if kind == "I":
            self._waiting.append(Action("W", action.stage, action.microbatch))
        return action
