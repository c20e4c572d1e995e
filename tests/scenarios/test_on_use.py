"""Modules that wait until they are used, and commands that do without them and other work."""

import gettext
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NotRequired, Required

import numpy as np
import numpy.typing
import pytest
import typing_extensions

from scenarios import array_types, on_use, untranslated
from scenarios.on_use import CALLED, INSTEAD, ON_USE, loading_on_use

ROOT = Path(__file__).parents[2]
UNNEEDED = {
    "concurrent",
    "dataclasses",
    "email",
    "importlib.metadata",
    "logging",
    "numpy.ma",
    "numpy.random.mtrand",
    "rich",
    "shutil",
    "socket",
    "tempfile",
    "zipfile",
}
"""Modules of Python and of other packages that a step's command does without."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of a package ``waiting_test`` that can be imported, and is forgotten after the test."""
    folder = tmp_path / "waiting_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "waiting_test"]:
        del sys.modules[name]


def test_a_file_is_run_at_the_first_use_and_once(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An import prints nothing of what the file prints, the first name that is used does, and no other use."""
    (package / "loud.py").write_text("print('read')\nanswer = 42\n")
    with loading_on_use({"waiting_test.loud"}):
        loud = import_module("waiting_test.loud")
    assert capsys.readouterr().out == ""
    assert (loud.answer, loud.answer) == (42, 42)
    assert capsys.readouterr().out == "read\n"


def test_a_missing_name_is_missed_as_usual(package: Path) -> None:
    """A name that the file does not define raises AttributeError, before and after it is loaded."""
    (package / "small.py").write_text("answer = 42\n")
    with loading_on_use({"waiting_test.small"}):
        small = import_module("waiting_test.small")
    for _ in range(2):
        with pytest.raises(AttributeError, match="no attribute 'question'"):
            _ = small.question


def test_all_names_and_names_between_underscores_are_there(package: Path) -> None:
    """``import *`` brings what the file defines, with a list of names and without; so does a version."""
    (package / "listed.py").write_text("__all__ = ['answer']\nanswer, question = 42, 6 * 9\n")
    (package / "plain.py").write_text("__version__ = '1.0'\nother = 54\n")
    names: dict[str, object] = {}
    with loading_on_use({"waiting_test.listed", "waiting_test.plain"}):
        exec("from waiting_test.listed import *\nfrom waiting_test.plain import *", names)
        plain = import_module("waiting_test.plain")
    assert {name for name in names if not name.startswith("__")} == {"answer", "other"}
    assert plain.__version__ == "1.0"


def test_a_file_that_fails_says_so_at_every_use(package: Path) -> None:
    """The error of a file is raised where a name of it is used, each time."""
    (package / "broken.py").write_text("raise ValueError('not today')\n")
    with loading_on_use({"waiting_test.broken"}):
        broken = import_module("waiting_test.broken")
    for _ in range(2):
        with pytest.raises(ValueError, match="not today"):
            _ = broken.answer


def test_modules_of_a_waiting_package_are_imported_without_its_file(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module of a package that waits is imported at once; the package's own file is run for a name of its own."""
    (package / "loud").mkdir()
    (package / "loud" / "__init__.py").write_text("print('read')\nanswer = 42\n")
    (package / "loud" / "part.py").write_text("half = 21\n")
    with loading_on_use({"waiting_test.loud"}):
        part = import_module("waiting_test.loud.part")
        loud = import_module("waiting_test.loud")
    assert (part.half, loud.part.half) == (21, 21)
    assert capsys.readouterr().out == ""
    assert loud.answer == 42
    assert capsys.readouterr().out == "read\n"


def test_what_is_called_is_read_when_it_is_called(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is only called is imported without reading the file; a call reads it, once, and answers."""
    monkeypatch.setattr(on_use, "CALLED", frozenset({"waiting_test.loud.half"}))
    (package / "loud.py").write_text("print('read')\ndef half(of, *, less=0): return of // 2 - less\n")
    names: dict[str, Any] = {}
    with loading_on_use({"waiting_test.loud"}):
        exec("from waiting_test.loud import half", names)
    assert capsys.readouterr().out == ""
    assert (names["half"](42), names["half"](42, less=1)) == (21, 20)
    assert capsys.readouterr().out == "read\n"


def test_code_after_a_command_gets_what_a_module_defines(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a command has ended, errors that are only called can be caught, and names are the module's own."""
    monkeypatch.setattr(on_use, "CALLED", frozenset({"waiting_test.loud.Broken"}))
    monkeypatch.setattr(on_use, "INSTEAD", {"waiting_test.loud.half": "waiting_test.small"})
    (package / "loud.py").write_text("class Broken(Exception): pass\nhalf = 21.0\n")
    (package / "small.py").write_text("half = 21\n")
    with loading_on_use({"waiting_test.loud"}):
        loud = import_module("waiting_test.loud")
        assert (isinstance(loud.Broken, type), type(loud.half)) == (False, int)
    assert (isinstance(loud.Broken, type), type(loud.half)) == (True, float)


def test_what_another_module_has_comes_from_there(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is to come from another module is imported without reading the file of the one that is named."""
    monkeypatch.setattr(on_use, "INSTEAD", {"waiting_test.loud.half": "waiting_test.small"})
    (package / "loud.py").write_text("print('read')\nhalf = 42 // 2\n")
    (package / "small.py").write_text("half = 21\n")
    names: dict[str, Any] = {}
    with loading_on_use({"waiting_test.loud"}):
        exec("from waiting_test.loud import half", names)
    assert (names["half"], capsys.readouterr().out) == (21, "")


def test_modules_of_a_package_are_found_as_its_attributes(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package whose modules are asked for by attribute imports them; its own file is run for other names."""
    monkeypatch.setattr(on_use, "OF_MODULES", frozenset({"waiting_test.loud"}))
    (package / "loud").mkdir()
    (package / "loud" / "__init__.py").write_text("print('read')\nanswer = 42\n")
    (package / "loud" / "part.py").write_text("half = 21\n")
    with loading_on_use({"waiting_test.loud"}):
        loud = import_module("waiting_test.loud")
        assert (loud.part.half, capsys.readouterr().out) == (21, "")
    assert (loud.answer, capsys.readouterr().out) == (42, "read\n")


def test_each_name_is_a_module() -> None:
    """Every module of the list is there."""
    assert [name for name in sorted(ON_USE) if find_spec(name) is None] == []


def test_what_is_called_can_be_called() -> None:
    """Every name that is only called is one of a module that waits, and can be called."""
    for module, name in (full_name.rsplit(".", 1) for full_name in CALLED):
        assert module in ON_USE
        assert callable(getattr(import_module(module), name))


def test_what_comes_from_elsewhere_is_as_good() -> None:
    """Each name that comes from another module is one of a module that waits; types are the same types."""
    for full_name, source in INSTEAD.items():
        module, _, name = full_name.rpartition(".")
        assert module in ON_USE
        assert hasattr(import_module(module), name)
        assert hasattr(import_module(source), name)
    assert array_types.NDArray[np.float64] == numpy.typing.NDArray[np.float64]
    assert (typing_extensions.Required, typing_extensions.NotRequired) == (Required, NotRequired)


def test_texts_are_those_of_gettext_without_translations() -> None:
    """What takes the place of ``gettext`` gives what that gives where no file translates the text."""
    assert untranslated.gettext("Show {it}.") == gettext.gettext("Show {it}.")
    for number in (0, 1, 2):
        assert untranslated.ngettext("{} file", "{} files", number) == gettext.ngettext("{} file", "{} files", number)


def test_a_simulation_as_json_leaves_them_waiting() -> None:
    """A plain step with ``--json`` runs only files of the list that it needs, and no module of ``UNNEEDED``.

    It needs those that lay JSON out, of drawn errors, and of links that are never full; the latter not where shifts
    keep all loads.
    """
    errors, links = "sim.engine.uncertainty.generators", ["sim.engine.folding.slack", "sim.engine.folding.turns"]
    assert _read_by(["tiny-gpt-2x2", "--json"], ON_USE | UNNEEDED) == ["msgspec.json", *links, errors]
    assert _read_by(["tiny-gpt-two-stages", "--json"], ON_USE | UNNEEDED) == ["msgspec.json", errors]


def test_only_drawn_intervals_ask_for_random_numbers() -> None:
    """A step too large to draw errors for imports no random numbers; OpenSSL, which they ask for, no step imports."""
    random, openssl = {"numpy.random.bit_generator"}, {"hashlib", "hmac", "numpy.random", "secrets"}
    assert _read_by(["tiny-gpt-2x2", "--json"], random | openssl) == [*random]
    many = ["--set", "training.global_batch_size=40000"]
    assert _read_by(["tiny-gpt-2x2", "--json", *many], random | openssl) == []


def test_a_file_that_is_no_yaml_is_refused_by_the_command(tmp_path: Path) -> None:
    """What the parser raises is loaded when it is raised: by its reader, its scanner and its parser."""
    for text, rule in {
        "name: \x01": "control characters are not allowed",
        "name: 'a": "found unexpected end of stream",
        "a: b: c": "mapping values are not allowed",
        "name: [a": "did not find expected ',' or ']'",
    }.items():
        (path := tmp_path / "scenario.yaml").write_text(text)
        code = f"from scenarios.cli import main; main([{str(path)!r}, '--json'])"
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert run.returncode == 2
        assert rule in run.stderr


def _read_by(args: Sequence[str], names: Collection[str]) -> list[str]:
    """Return which modules of these names are read, not only known, after a command of a process of its own."""
    code = (
        "import sys; from scenarios.on_use import loading_on_use\n"
        "with loading_on_use():\n"
        "    from scenarios.command_line import group\n"
        f"    group.main({list(args)}, standalone_mode=False)\n"
        "read = [name for name, module in sys.modules.items() if hasattr(module, '__builtins__')]\n"
        "print(); print(*(name for name in read if name in sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *sorted(names)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return out.splitlines()[-1].split()


def test_a_simulation_walks_no_objects_and_has_one_thread() -> None:
    """The cycle collector walks neither imports nor what a simulation holds; linear algebra starts no threads.

    A thread that was joined may be listed for a moment more.
    """
    if not Path("/proc/self/task").is_dir():
        pytest.skip("threads are counted in /proc/self/task")
    code = (
        "import gc, os, time; sizes = []\n"
        "gc.callbacks.append(lambda phase, _: sizes.append(gc.get_count()[0]) if phase == 'start' else None)\n"
        "from scenarios.cli import main\n"
        "try: main(['tiny-gpt-2x2', '--json'])\n"
        "except SystemExit: print()\n"
        "end_s = time.monotonic() + 10.0\n"
        "while len(os.listdir('/proc/self/task')) > 1 and time.monotonic() < end_s: time.sleep(0.01)\n"
        "print(len(sizes), max(sizes, default=0), len(os.listdir('/proc/self/task')))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment).stdout
    num_walks, most_new, num_threads = map(int, out.splitlines()[-1].split())
    assert num_walks < 5
    assert most_new < 10_000
    assert num_threads == 1
