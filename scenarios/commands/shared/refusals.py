"""Report bad input on standard error with exit code 2, and no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from backends.errors import LostProcessError, MissingBackendError
from backends.execution.errors import ExecutionError, JobError
from costmodels.errors import CostModelError
from scenarios.errors import ScenarioError, message_text
from sim.engine.errors import DeadlockError
from sim.training.errors import SpecError
from traces.errors import TraceError

INPUT_ERRORS = (ScenarioError, SpecError, CostModelError, TraceError, MissingBackendError, JobError)
RUN_ERRORS = (ExecutionError, DeadlockError)


class BadInput(click.ClickException):
    """Input that the user must change."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the message to standard error."""
        click.echo(f"error: {message_text(self.message)}", file=file, err=True)


class FailedRun(BadInput):
    """A run that did not get to its end, with good input."""

    exit_code = 1


@contextmanager
def refusing_bad_input() -> Iterator[None]:
    """Turn the input errors of all rooms, and runs that fail, into a message for the user."""
    try:
        yield
    except INPUT_ERRORS as error:
        raise BadInput(str(error)) from error
    except RUN_ERRORS as error:
        raise FailedRun(str(error)) from error
    except LostProcessError as error:
        rule = "a process ended before its work was done, perhaps for want of memory"
        raise FailedRun(f"{rule};\n    use fewer --jobs") from error
    except MemoryError as error:
        rule = "this takes more memory than there is"
        raise BadInput(
            f"{rule};\n    use fewer micro-batches or stages, or leave --no-fold and --detail out"
        ) from error
