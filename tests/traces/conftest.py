"""A small pipeline's timeline for the tests of traces."""

from collections.abc import Callable

import pytest

from traces.timeline import Timeline, TimelineBuilder

MakeTimeline = Callable[..., Timeline]


def pipeline(*, scale: float = 1.0, source: str = "simulated", num_ranks: int = 3, stands_for: int = 1) -> Timeline:
    """Return a forward through ``num_ranks`` stages, two micro-batches, and one all_reduce of all ranks."""
    builder = TimelineBuilder(source="executed" if source == "executed" else "simulated")
    reduces = []
    for rank in range(num_ranks):
        builder.add_rank(rank, f"pp={rank}", stands_for)
        builder.add_memory(rank, [0.0, rank + 1.0, rank + 2.0], [100, 100 * (rank + 2), 50])
    for microbatch in range(2):
        sent = None
        for rank in range(num_ranks):
            start_s = scale * (rank + microbatch) * 1.5
            name = f"forward.{rank}/layer{rank}.qkv"
            common = {"rank": rank, "microbatch": microbatch, "stage": rank}
            if sent is not None:
                received = builder.add(
                    stream="pp_recv", name=f"recv_forward.{rank}/recv", kind="recv", num_bytes=64,
                    start_s=start_s - 0.5 * scale, end_s=start_s, **common,
                )  # fmt: skip
                builder.add_message(sent, received)
            builder.add(
                stream="compute", name=name, kind="compute", start_s=start_s, end_s=start_s + scale,
                num_bytes=8, flop=1e12, **common,
            )  # fmt: skip
            if rank < num_ranks - 1:
                sent = builder.add(
                    stream="pp_send", name=f"send_forward.{rank}/send", kind="send", num_bytes=64,
                    start_s=start_s + scale, end_s=start_s + 1.5 * scale, **common,
                )  # fmt: skip
    for rank in range(num_ranks):
        reduces.append(
            builder.add(
                rank=rank, stream="dp", name="gradient_sync.0/sum_dp", kind="all_reduce", group="dp", num_bytes=1024,
                start_s=10.0 * scale, end_s=11.0 * scale,
            )
        )  # fmt: skip
    builder.add_collective(reduces)
    return builder.build()


@pytest.fixture
def make_timeline() -> MakeTimeline:
    """Return the function that makes timelines."""
    return pipeline
