"""A plan as a Chakra trace: every op of every rank, with its dependencies and its duration without contention."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from sim.engine.prices.activity import Activity, Pricing
from sim.plan.errors import PlanError
from sim.plan.facts.dependencies import dependencies
from sim.plan.facts.description import describe
from sim.plan.words.op import Collective, Op, Recv, Send
from sim.plan.words.program import Call, Plan, Program, Task
from traces.chakra.node import ChakraTrace, Node

Channel = tuple[int, int, int]
"""Sender, receiver and tag."""


def chakra_trace(plan: Plan, pricing: Pricing) -> ChakraTrace:
    """Return one step of a plan, all ranks, with durations by ``pricing``.

    An op's duration is its duration alone on its links and device, as a Chakra trace does not state what ops share.
    Raises PlanError for a plan whose steps do not wait for each other, as Chakra cannot express a dependency on the
    previous step.
    """
    if not plan.barrier or plan.num_steps > 1:
        rule = "the steps of this plan run into each other, and a Chakra trace holds one step alone"
        raise PlanError(rule)
    writer = _Writer(plan, pricing)
    ranks = {rank: list(writer.nodes(rank)) for rank in range(plan.mesh.size)}
    finished = {rank: tuple(writer.with_journeys(rank, nodes)) for rank, nodes in ranks.items()}
    return ChakraTrace(finished, {name: members for (_, members), name in writer.groups.items()})


@dataclass(slots=True)
class _Writer:
    """Writer of all ranks' nodes, with consistent names of process groups and messages."""

    plan: Plan
    pricing: Pricing
    groups: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)
    tags: dict[tuple[str, int, str], int] = field(default_factory=dict)
    journeys_s: dict[Channel, list[float]] = field(default_factory=lambda: defaultdict(list))

    def nodes(self, rank: int) -> Iterator[Node]:
        """Yield the ops of a rank; ``with_journeys`` adds the travel times of messages."""
        program = self.plan.program_of(rank)
        known: dict[int, tuple[Node, Activity]] = {}
        instances = zip(dependencies(program), program.instances(), strict=True)
        for place, (waits, (_, call, task, op)) in enumerate(instances):
            if id(op) not in known:
                activity = self.pricing.price(self.plan, program, op, rank)
                known[id(op)] = self._node(rank, program, task, op, activity), activity
            node, activity = known[id(op)]
            if isinstance(op, Send):
                self.journeys_s[rank, node.peer, node.tag].append(activity.latency_s)
            yield replace(node, id=place, name=_name(node.name, call), after=waits)

    def with_journeys(self, rank: int, nodes: list[Node]) -> Iterator[Node]:
        """Yield the nodes; receives get the travel times of their messages."""
        received: dict[Channel, int] = defaultdict(int)
        for node in nodes:
            if node.kind != "recv":
                yield node
                continue
            channel = node.peer, rank, node.tag
            yield replace(node, duration_s=self.journeys_s[channel][received[channel]])
            received[channel] += 1

    def _node(self, rank: int, program: Program, task: Task, op: Op, activity: Activity) -> Node:
        facts = describe(program, task, op)
        node = Node(
            id=0, name=facts.name, kind=facts.kind, duration_s=activity.duration_s, num_bytes=facts.num_bytes,
            flop=round(facts.flop), stream=op.stream,
        )  # fmt: skip
        if isinstance(op, Collective):
            key = op.stream, self._members(rank, op)
            return replace(node, group=self.groups.setdefault(key, str(len(self.groups) + 1)))
        if isinstance(op, Send | Recv):
            sent = op.offset if isinstance(op, Send) else -op.offset
            tag = self.tags.setdefault((op.axis, sent, op.direction), len(self.tags))
            peer = self.plan.mesh.shift(rank, op.axis, op.offset)
            return replace(node, duration_s=activity.occupancy_s, peer=peer, tag=tag)
        return node

    def _members(self, rank: int, op: Collective) -> tuple[int, ...]:
        group = self.plan.mesh.group(rank, op.axes)
        return tuple(group[position] for position in op.members) or group


def _name(name: str, call: Call) -> str:
    return name if call.microbatch is None else f"{name}, micro-batch {call.microbatch}"
