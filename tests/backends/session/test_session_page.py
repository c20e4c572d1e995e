"""The example of docs/sessions.md runs in both backends, and prints what the page says."""

import re
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT

PAGE = ROOT / "docs" / "sessions.md"


def test_the_example_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    """Run as a script, its decisions and its work are the same in execution and in simulation."""
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
