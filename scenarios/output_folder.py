"""Make sure, before any work is done, that results can be written."""

import tempfile
from pathlib import Path

from scenarios.errors import Origin, ScenarioError


def refuse_unwritable(folder: Path) -> None:
    """Raise ScenarioError unless files can be written to ``folder``, which need not exist. Leaves nothing behind.

    Tries it: permissions alone do not tell of read-only or full file systems.
    """
    existing = folder.absolute()
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            raise _refusal(folder, f"{existing} is a file, not a directory", "name a directory")
        with tempfile.TemporaryFile(dir=existing):
            pass
        Path(tempfile.mkdtemp(dir=existing)).rmdir()
    except (OSError, ValueError) as error:
        if isinstance(error, ScenarioError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        rule = f"nothing can be written in {existing}: {reason.lower()}"
        raise _refusal(folder, rule, "name a directory that you may write to") from error


def _refusal(folder: Path, rule: str, remedy: str) -> ScenarioError:
    return ScenarioError(Origin(option=f"--out {folder}"), "", rule, remedy)
