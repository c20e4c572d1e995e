"""Stores through which the processes of a job meet: one process serves it, the others have a line to it each."""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from backends.torch.launching.environment import JobMember


def served_store(port: int = 0) -> tuple[Store, int]:
    """Serve a store on this machine, on a free port where none is given; return it with its port."""
    store = dist.TCPStore("localhost", port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    return store, int(store.port)


def store_of(member: JobMember, timeout_s: float) -> Store:
    """Return a line to a job's store, whose operations wait so long for what is not there yet.

    It waits for ever where who listens at the store's address does not answer.
    """
    store: Store = dist.TCPStore(  # type: ignore[attr-defined]
        member.address, member.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
    return store
