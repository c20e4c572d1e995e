"""The entry of the command ``simulate``.

Exit codes: 0 done; 1 a threshold or check failed; 2 bad input; 130 ended by SIGINT (Ctrl-C), 143 by SIGTERM.
"""

from collections.abc import Sequence
from importlib import import_module

from scenarios.on_use import loading_on_use
from sim.engine.running.collector import collector_paused


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code. ``args``: default those of the process."""
    with loading_on_use():
        with collector_paused(freeze=True):  # what an import makes stays
            command_line = import_module("scenarios.command_line")
        command_line.run(args)
