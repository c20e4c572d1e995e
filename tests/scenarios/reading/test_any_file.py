"""Whatever lies under the name that a command is given: one message, no traceback, nothing waited for."""

import os
from pathlib import Path

import pytest

from scenarios.cli import main
from tests.scenarios.calibration.measured_tables import two_systems

PROFILES = Path(__file__).parents[3] / "costmodels" / "profiles"
ENDINGS = ("", ".yaml", ".json", ".json.gz", ".csv", ".parquet", ".tar.gz")
KINDS = ("folder", "pipe", "link to nothing", "link to itself", "empty", "no text", "NUL", "words")
OTHERS = (
    "x" * 300, "a/b/c.yaml", "ok.yaml/x.yaml", "/dev/null", "/dev/zero", "..", "\udcff.yaml", "/proc/self/mem", "",
)  # fmt: skip
COMMANDS = (
    "{}", "sweep {} --set seed=1 --jobs 1", "compare {} {}", "trace {}", "replay {}", "export {} --out o",
    "fit {} --constant software.launch --jobs 1", "spread {} tables.csv --out n.yaml",
    "spread profile.yaml {} --out n.yaml", "spread profile.yaml --trace {} --out n.yaml", "validate {}",
    "validate {} --data {}", "schedule {}", "show {}", "calibrate --from {} --node dgx-a100-80g --out n.yaml",
    "residuals {} --node dgx-a100-80g", "residuals tables.csv --system one --node dgx-a100-80g --profile {}",
    "new {}", "ok.yaml --out {}", "show ok.yaml --out {}", "schedule ok.yaml --out {}", "execute {}",
)  # fmt: skip
WRITES = ("new", "--out {}")
"""What may well be done under any name that is free."""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder of everything that a reader does not expect, with each ending; its parent is this test's own."""
    folder = tmp_path / "files"
    folder.mkdir()
    for ending in ENDINGS:
        names = {kind: folder / f"{kind}{ending}" for kind in KINDS}
        names["folder"].mkdir()
        os.mkfifo(names["pipe"])
        names["link to nothing"].symlink_to("nowhere")
        names["link to itself"].symlink_to(names["link to itself"].name)
        for kind, raw in (("empty", b""), ("no text", b"\xff\xfe\xe9"), ("NUL", b"a\0b: 1\n"), ("words", b"a b c\n")):
            names[kind].write_bytes(raw)
    (folder / "ok.yaml").write_text(
        "name: a\nmodel: {family: delay, forward: 1 s, backward_input: 1 s, backward_weight: 1 s}\n"
        "training: {num_microbatches: 2}\nparallel: {pipeline: {degree: 2}}\n"
    )
    (folder / "profile.yaml").write_bytes((PROFILES / "a100.yaml").read_bytes())
    two_systems(folder).rename(folder / "tables.csv")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_any_name_gets_an_answer(files: Path, capsys, monkeypatch, command: str) -> None:
    """A file of no use, or of no kind, is refused with exit code 2 and a message, by every command and option."""
    monkeypatch.chdir(files)
    writes = any(word in command for word in WRITES)
    for name in (*(f"{kind}{ending}" for ending in ENDINGS for kind in KINDS), *OTHERS):
        if writes and not os.path.exists(name or "."):
            continue
        with pytest.raises(SystemExit) as done:
            main([word.replace("{}", name) for word in command.split(" ")])
        output = capsys.readouterr()
        if not writes:
            assert done.value.code == 2, name
        if done.value.code:
            assert done.value.code == 2, name
            assert output.err.strip(), name
            assert "Traceback" not in output.err
