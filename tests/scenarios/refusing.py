"""A command line that is refused: exit code 2, one message, nothing written."""

from pathlib import Path

import pytest

from scenarios.cli import main


def refuse(capsys: pytest.CaptureFixture[str], folder: Path, *args: str, answered: bool = False) -> str:
    """Run the command line, expect a refusal that writes nothing, and return the message.

    ``answered``: the answer is on the screen by then, as ``simulate`` prints it before it writes files.
    """
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    output = capsys.readouterr()
    assert caught.value.code == 2
    assert bool(output.out) is answered
    assert "Traceback" not in output.err
    assert len(output.err) < 2000
    assert sorted(folder.rglob("*")) == before
    return output.err
