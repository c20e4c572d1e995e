"""Streams: in-order queues of a rank's ops, and their purposes."""

from enum import StrEnum
from functools import lru_cache
from typing import Literal

from msgspec import Struct


class Purpose(StrEnum):
    """The purpose of a stream: computing, the communication of one mesh axis, or copies.

    ``BACKGROUND``: communication that uses only what all other leaves of the links.
    """

    COMPUTE = "compute"
    TENSOR = "tp"
    EXPERT = "ep"
    CONTEXT = "cp"
    DATA = "dp"
    PIPELINE = "pp"
    TO_HOST = "d2h"
    FROM_HOST = "h2d"
    HOST = "host"
    NVME = "nvme"
    TIED_EMBEDDING = "embedding"
    BACKGROUND = "background"


class Stream(Struct, frozen=True):
    """A stream of a rank.

    ``purpose``: None if the name states none, as in recorded profiles.
    ``direction``: of the pipeline messages on it, if all go the same way.
    ``axis``: for tensor parallelism on a mesh, the mesh axis of its communication.
    """

    name: str
    purpose: Purpose | None
    direction: Literal["", "forward", "backward"] = ""
    axis: str = ""


@lru_cache(maxsize=1024)  # a plan has few streams, and every op names one
def stream_of(name: str) -> Stream:
    """Return the stream of a name.

    Plans, timelines and summaries hold only names. A name's first word is the purpose; further words distinguish
    streams of one purpose: ``pp_send_forward``. Only this function parses a name.
    """
    first, *others = name.split("_")
    purpose = Purpose(first) if first in set(Purpose) else None
    if "forward" in others:
        return Stream(name, purpose, "forward")
    axis = others[0] if purpose is Purpose.TENSOR and others[:1] not in ([], ["send"], ["recv"]) else ""
    return Stream(name, purpose, "backward" if "backward" in others else "", axis)
