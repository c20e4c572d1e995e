"""Messages around the ranks of an axis."""

from collections.abc import Sequence

from msgspec import Struct

from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.op import Direction, Recv, Send


class Ring(Struct, frozen=True):
    """The messages of one kind among the ranks along ``axis``: their direction and their two streams.

    ``queue``: a suffix for the names of the streams. Messages with different suffixes do not wait for each other.
    """

    axis: str
    direction: Direction
    queue: str = ""

    def send(self, t: TaskTracer, name: str, tensors: Sequence[Tensor], offset: int) -> None:
        """Send tensors in one message to the rank ``offset`` places ahead."""
        reads, stream = tuple([x.name for x in tensors]), f"{self.axis}_send{self.queue}"
        t.emit(Send(t.unique(f"{name}.send"), self.axis, offset, self.direction, reads, stream))

    def receive(
        self, t: TaskTracer, name: str, likes: Sequence[Tensor], labels: Sequence[str], offset: int, kind: Kind
    ) -> tuple[Tensor, ...]:
        """Receive one message from the rank ``offset`` places ahead; return new tensors like ``likes``."""
        op_name = t.unique(name)
        received = [
            t.program.tensor(Buffer(f"{op_name}{label}{t.part}", x.shape, x.dtype, kind, t.scope), x.layout)
            for x, label in zip(likes, labels, strict=True)
        ]
        writes = tuple([x.name for x in received])
        t.emit(Recv(op_name, self.axis, offset, self.direction, writes, f"{self.axis}_recv{self.queue}"))
        return tuple(received)
