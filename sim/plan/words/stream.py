"""Streams: in-order queues of a rank's ops, and their purposes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Purpose(StrEnum):
    """The purpose of a stream: computing, the communication of one axis of the mesh, or copies."""

    COMPUTE = "compute"
    TENSOR = "tp"
    EXPERT = "ep"
    CONTEXT = "cp"
    DATA = "dp"
    PIPELINE = "pp"
    TO_HOST = "d2h"
    FROM_HOST = "h2d"
    HOST = "host"
    TIED_EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream. ``purpose``: None if its name states none, as in recorded profiles.

    ``direction``: of the pipeline's messages on it, if all go the same way. ``axis``: of tensor parallelism on a mesh,
    the axis of the mesh along which it communicates.
    """

    name: str
    purpose: Purpose | None
    direction: Literal["", "forward", "backward"] = ""
    axis: str = ""


def stream_of(name: str) -> Stream:
    """Return the stream of a name.

    Plans, timelines and summaries hold names alone. A name's first word is the purpose, further words tell streams of
    one purpose apart: ``pp_send_forward``. Nothing else in the project takes a name apart.
    """
    first, *others = name.split("_")
    purpose = Purpose(first) if first in set(Purpose) else None
    if "forward" in others:
        return Stream(name, purpose, "forward")
    axis = others[0] if purpose is Purpose.TENSOR and others[:1] not in ([], ["send"], ["recv"]) else ""
    return Stream(name, purpose, "backward" if "backward" in others else "", axis)
