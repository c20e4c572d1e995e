"""Key-value stores through which the processes of a job meet. One process serves it, and the others connect to it."""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]


def served_store(port: int = 0) -> tuple[Store, int]:
    """Serve a store on this machine; return the store and its port. If no port is given, a free one is chosen."""
    store = dist.TCPStore("localhost", port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    return store, int(store.port)


def joined_store(address: str, port: int, timeout_s: float) -> Store:
    """Return a connection to a store. Its operations wait up to ``timeout_s`` for a key that is not yet there.

    This call waits for ever if a process listens at the store's address and does not answer.
    """
    store: Store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
    return store
