"""Messages between the controller of a job mix and the processes of its slots. A job is named by its place."""

from msgspec import Struct

from backends.execution.jobs import Compared, LiveTraining, Step

# --- from the controller ------------------------------------------------------------------------------------


class Prepare(Struct, frozen=True):
    """Get ready to train a job. ``folder``: where it is saved; what is there already is where it goes on."""

    job: int
    training: LiveTraining
    folder: str


class Pause(Struct, frozen=True):
    """Stop after a step, all workers after the same one."""

    job: int


class HandOver(Struct, frozen=True):
    """Go on on other slots. ``old``, ``new``: slots in order of rank; none before a start, none after a stop.

    ``meeting``: a number of its own.
    """

    job: int
    meeting: int
    old: tuple[int, ...]
    new: tuple[int, ...]


class Abandon(Struct, frozen=True):
    """Leave the job at once: another worker is gone, or it is done."""

    job: int


class Repeat(Struct, frozen=True):
    """Train a finished job once more, alone, with the same batches, and compare."""

    job: int
    training: LiveTraining
    steps: tuple[Step, ...]
    parameters: tuple[float, ...]


Order = Prepare | Pause | HandOver | Abandon | Repeat

# --- from a worker ------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True):
    """A new worker has its network and its samples."""

    job: int


class Paused(Struct, frozen=True):
    """A worker has stopped after the step that all have stopped after; ``position``: samples done."""

    job: int
    position: int


class Running(Struct, frozen=True):
    """A worker goes on. ``digest``: of its parameters and momentum."""

    job: int
    position: int
    digest: str


class Released(Struct, frozen=True):
    """A worker has left the job."""

    job: int


class EpochDone(Struct, frozen=True):
    """From rank 0, after the state was saved. ``samples_per_s``: since the last report or hand-over; 0 at the start."""

    job: int
    position: int
    loss: float
    accuracy: float
    samples_per_s: float


class Finished(Struct, frozen=True):
    """A worker has done all epochs. ``steps`` and ``parameters``: from rank 0 alone, the second flat."""

    job: int
    digest: str
    steps: tuple[Step, ...]
    parameters: tuple[float, ...]


class Broken(Struct, frozen=True):
    """A worker had to leave: another one is gone, or it failed itself."""

    job: int
    message: str


class Repeated(Struct, frozen=True):
    """A finished job was trained once more."""

    job: int
    compared: Compared


Report = Repeated | Ready | Paused | Running | Released | EpochDone | Finished | Broken
