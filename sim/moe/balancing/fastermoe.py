"""FasterMoE as a policy of sessions: it shadows the hottest experts of each layer for one step (He et al. 2022).

    policy = FasterMoE(maker=ShadowPolicy(...), first=shared_out(2, 4, 8), foreseen=counts_of_step)

The decision is made within the step, from the counts that ranks gather in it. A plan must state it before. So the
policy foresees the routing, which is data.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sim.moe.balancing.replicas import Placed, Replicas
from sim.moe.balancing.shadowing import ShadowPolicy
from sim.moe.routing import Counts


class FasterMoE(Struct, frozen=True, kw_only=True):
    """Shadows experts where the estimate says that it is faster. State: how many steps there were.

    ``first``: where experts lie, which stays. ``foreseen``: the choices by expert of each layer in a step, of the ranks
    that share them out and one micro-batch.
    """

    maker: ShadowPolicy
    first: Replicas
    foreseen: Callable[[int], Sequence[Counts]]

    @property
    def observed(self) -> frozenset[str]:
        """Return no buffers: it sees nothing of a step but what is foreseen."""
        return frozenset()

    def start(self) -> int:
        """Return that there was no step."""
        return 0

    def decide(self, state: int, _: object) -> tuple[int, Placed]:
        """Return the number of steps with the next one, and the next one's shadows."""
        shadows = tuple(tuple(sorted(self.maker.shadowed(by_expert))) for by_expert in self.foreseen(state))
        return state + 1, Placed(replace(self.first, shadows=shadows), sum(map(len, shadows)))
