"""The variables of a running job, as torchrun sets them in the environment, and their rules."""

import re
import socket
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from backends.execution.errors import JobError
from sim.plan.words.program import Plan

_ANNOUNCING: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""A process is part of a running job if one of these is set. Some computers set MASTER_ADDR for every process."""
_MOST: Final = 2**31 - 1
"""The largest number of ranks that torch takes."""


class JobMember(Struct, frozen=True, kw_only=True):
    """One process of a running job.

    ``local_size``: number of the job's processes on this machine; None if it is unknown.
    ``address``, ``port``: address of the store through which the processes meet.
    ``launcher_serves``: the launcher serves the store; otherwise rank 0 serves it.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int | None
    address: str
    port: int
    launcher_serves: bool

    @property
    def serves_store(self) -> bool:
        """Return whether this process serves the store."""
        return self.rank == 0 and not self.launcher_serves

    @property
    def server(self) -> str:
        """Return the server of the store and its address, in words."""
        who = "the launcher" if self.launcher_serves else "rank 0"
        return f"{who} at {self.address}:{self.port} (MASTER_ADDR, MASTER_PORT)"


def job_member(environment: Mapping[str, str], plans: Iterable[Plan]) -> JobMember | None:
    """Return this process's place in a running job; None if the environment names no job.

        job_member(os.environ, [plan])

    Raises JobError if a variable is missing or breaks a rule, or if a plan has another number of ranks than the job.
    """
    if not any(name in environment for name in _ANNOUNCING):
        return None
    size = _whole(environment, "WORLD_SIZE", 1, _MOST, "it is the number of processes of the job, 1 or more")
    count = f"the ranks of {size} processes (WORLD_SIZE) count from 0 to {size - 1}"
    rank = _whole(environment, "RANK", 0, size - 1, count)
    for plan in plans:
        if plan.mesh.size != size:
            rule = f"plan {plan.name!r} has {plan.mesh.size} ranks, the job has {size} (WORLD_SIZE)"
            remedy = "start as many processes as the plan has ranks, or change the degrees of the scenario"
            raise JobError("WORLD_SIZE", str(size), rule, remedy)
    local_size, most = None, size - 1
    if "LOCAL_WORLD_SIZE" in environment:
        rule = f"it is the number of the job's processes on this machine, 1 to {size} (WORLD_SIZE)"
        local_size = _whole(environment, "LOCAL_WORLD_SIZE", 1, size, rule)
        most = local_size - 1
    local_rank = 0
    if "LOCAL_RANK" in environment:
        local_rank = _whole(environment, "LOCAL_RANK", 0, most, f"the ranks of this machine count from 0 to {most}")
    return JobMember(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        address=_text(environment, "MASTER_ADDR"),
        port=_whole(environment, "MASTER_PORT", 1, 2**16 - 1, "a port is a number from 1 to 65535"),
        launcher_serves=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def refuse_unknown_address(member: JobMember) -> None:
    """Raise JobError if MASTER_ADDR names no known computer."""
    try:
        socket.getaddrinfo(member.address, member.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        rule = "no computer of this name is known here"
        remedy = "name the computer that rank 0 runs on, by a name or an address that all computers of the job know"
        raise JobError("MASTER_ADDR", member.address, rule, remedy) from error


def _text(environment: Mapping[str, str], name: str) -> str:
    """Return a variable. Raises JobError if the variable is not set or is empty."""
    remedy = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does, or none of them for local processes"
    if name not in environment:
        found = next(each for each in _ANNOUNCING if each in environment)
        rule = f"it is not set, but {found}={environment[found]} says that this process is one of a running job"
        raise JobError(name, None, rule, remedy)
    text = environment[name]
    if not text.strip():
        raise JobError(name, text, "it is empty", remedy)
    return text


def _whole(environment: Mapping[str, str], name: str, least: int, most: int, rule: str) -> int:
    """Return a variable as a whole number. Raises JobError, with the rule, if it is no number or outside its limits."""
    text = _text(environment, name)
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise JobError(name, text, f"this is not a whole number; {rule}", "give it a number, as torchrun does")
    if not least <= int(text) <= most:
        raise JobError(name, text, rule, "give it a number within these limits, as torchrun does")
    return int(text)
