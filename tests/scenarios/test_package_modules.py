"""Modules of packages are those that Python finds and loads, and a command finds and loads them by itself."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import click
import msgspec
import numpy as np
import pytest
import yaml

from scenarios.on_use import ON_USE
from scenarios.package_modules import PackageLoader, PackageModules

ROOT = Path(__file__).parents[2]
OWN = ("backends.", "costmodels.", "scenarios.", "sim.", "traces.")
"""How names of the program's modules begin."""


def _named(file: Path) -> str:
    """Return the name of the module, or of the package, of a file."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = [
    (name, str(file.parent.parent if file.stem == "__init__" else file.parent))
    for room in OWN
    for file in sorted((ROOT / room.rstrip(".")).rglob("*.py"))
    if "." in (name := _named(file))
]
"""All modules of the program but its rooms, and the folders of their packages."""


def _place(spec: ModuleSpec | None) -> tuple[object, ...]:
    """Return where a module is, where its compiled file is, and where its own modules are."""
    assert spec is not None
    return spec.name, spec.origin, spec.has_location, spec.cached, spec.submodule_search_locations, spec.parent


def test_modules_are_where_python_finds_them() -> None:
    """Every module and package of the program has the file, compiled file and folder that Python finds."""
    modules = PackageModules()
    assert len(MODULES) > 700
    for name, folder in MODULES:
        assert _place(modules.find_spec(name, [folder])) == _place(PathFinder.find_spec(name, [folder]))


@pytest.mark.parametrize("package", [click, msgspec, np, yaml], ids=lambda package: package.__name__)
def test_modules_of_other_packages_are_where_python_finds_them(package: ModuleType) -> None:
    """A module in Python of a package has the file that Python finds; its extensions are looked for by Python."""
    modules, kinds = PackageModules(), set()
    for file in sorted(Path(package.__path__[0]).iterdir()):
        name = f"{package.__name__}.{file.name.partition('.')[0]}"
        theirs = PathFinder.find_spec(name, package.__path__)
        kinds.add(in_python := theirs is not None and isinstance(theirs.loader, SourceFileLoader))
        ours = modules.find_spec(name, package.__path__)
        assert (_place(ours) == _place(theirs)) if in_python else ours is None
    assert True in kinds


@pytest.mark.parametrize("suffix", EXTENSION_SUFFIXES)
def test_extensions_go_before_files_of_their_name(tmp_path: Path, suffix: str) -> None:
    """A module, or a package's own file, beside an extension of its name is Python's to find: the extension."""
    (tmp_path / "package").mkdir()
    for stem in ("module", "package/__init__", "pure"):
        (tmp_path / f"{stem}.py").touch()
    for stem in ("module", "package/__init__"):
        (tmp_path / f"{stem}{suffix}").touch()
    found = [PackageModules().find_spec(f"sim.{name}", [str(tmp_path)]) for name in ("module", "package", "pure")]
    assert [spec is not None for spec in found] == [False, False, True]


def test_other_modules_are_looked_for_by_python(tmp_path: Path) -> None:
    """What is no Python file in the one folder of a package is not found here."""
    modules = PackageModules()
    (tmp_path / "data").mkdir()
    archive = tmp_path / "program.zip"
    with ZipFile(archive, "w") as file:
        file.writestr("sim/moved.py", "")
    assert modules.find_spec("sim.missing", [str(tmp_path)]) is None
    assert (
        modules.find_spec("sim.data", [str(tmp_path)]) is None
    )  # a folder without __init__.py: Python makes a namespace
    assert modules.find_spec("sim.moved", [str(archive / "sim")]) is None
    assert modules.find_spec("sim.moved", [str(tmp_path), str(ROOT)]) is None
    assert modules.find_spec("sim", None) is None


def test_a_package_goes_before_a_module_of_its_name(tmp_path: Path) -> None:
    """A folder with ``__init__.py`` is found, and not the file beside it, as Python has it."""
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / "__init__.py").touch()
    (tmp_path / "twice.py").touch()
    places = [finder("sim.twice", [str(tmp_path)]) for finder in (PackageModules().find_spec, PathFinder.find_spec)]
    assert _place(places[0]) == _place(places[1])


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    """The bytes of a file are those that are in it, also of one that is empty or large."""
    for content in (b"", b"a\r\nb\0", bytes(range(256)) * 4096):
        (tmp_path / "file").write_bytes(content)
        assert PackageLoader("sim.file", "", "").get_data(str(tmp_path / "file")) == content


@pytest.fixture
def compiled_files_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python keep compiled files beside their sources."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)


def _answer(file: Path) -> object:
    """Return what a module's file says the answer is, once it is loaded."""
    names: dict[str, object] = {}
    code = PackageLoader("sim.file", str(file), cache_from_source(str(file))).get_code("sim.file")
    assert code is not None
    assert code.co_filename == str(file)
    exec(code, names)
    return names["answer"]


@pytest.mark.usefixtures("compiled_files_kept")
def test_a_compiled_file_is_used_while_it_is_up_to_date(tmp_path: Path) -> None:
    """Code comes from the compiled file while the source has the time and size that it names, and else anew."""
    file = tmp_path / "file.py"
    file.write_text("answer = 41\n")
    os.utime(file, (1e9, 1e9))
    assert _answer(file) == 41
    file.write_text("answer = 42\n")  # as long
    os.utime(file, (1e9, 1e9))
    assert _answer(file) == 41
    os.utime(file, (1e9 + 1, 1e9 + 1))
    assert _answer(file) == 42
    file.write_text("answer = 4200\n")
    os.utime(file, (1e9 + 1, 1e9 + 1))
    assert _answer(file) == 4200


@pytest.mark.usefixtures("compiled_files_kept")
def test_python_is_asked_only_for_what_has_no_compiled_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled file that is up to date is read here."""
    (tmp_path / "file.py").write_text("answer = 42\n")
    asked: list[str] = []
    theirs = SourceFileLoader.get_code
    monkeypatch.setattr(SourceFileLoader, "get_code", lambda self, name: asked.append(name) or theirs(self, name))
    assert [_answer(tmp_path / "file.py") for _ in range(3)] == [42] * 3
    assert asked == ["sim.file"]


@pytest.mark.usefixtures("compiled_files_kept")
@pytest.mark.parametrize("damage", [
    lambda good: b"",
    lambda good: good[:12],
    lambda good: b"\0\0" + good[2:],
    lambda good: good[:4] + b"\x03" + good[5:],
], ids=["empty", "cut", "of another Python", "checked by a digest"])  # fmt: skip
def test_another_compiled_file_is_not_used(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """The source is compiled where its compiled file is cut, of another Python, or checked in another way."""
    file = tmp_path / "file.py"
    file.write_text("answer = 42\n")
    assert _answer(file) == 42
    compiled = Path(cache_from_source(str(file)))
    good = compiled.read_bytes()
    compiled.write_bytes(damage(good.replace(bytes([42]), bytes([43]))))
    assert _answer(file) == 42


@pytest.mark.usefixtures("compiled_files_kept")
def test_moved_modules_name_their_own_files(tmp_path: Path) -> None:
    """Code that was compiled at another place names the file where it is now, as ``_answer`` asks."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file.py").write_text("answer = 42\n")
    assert _answer(tmp_path / "old" / "file.py") == 42
    (tmp_path / "old").rename(tmp_path / "new")
    assert _answer(tmp_path / "new" / "file.py") == 42


def test_a_folder_of_compiled_files_is_kept_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled files lie where ``sys.pycache_prefix`` and the level of optimisation have them."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    name, folder = MODULES[0]
    spec = PackageModules().find_spec(name, [folder])
    assert _place(spec) == _place(PathFinder.find_spec(name, [folder]))
    assert spec is not None
    assert spec.cached is not None
    assert spec.cached.startswith(str(tmp_path))


def test_a_command_finds_its_modules_by_itself() -> None:
    """All modules in Python of packages that a step's command imports come this way, but those it begins with."""
    code = (
        "import json, sys; from scenarios.cli import main; before = set(sys.modules)\n"
        "try: main(['tiny-gpt-2x2', '--json'])\n"
        "except SystemExit: print()\n"
        "specs = {name: module.__spec__ for name, module in sys.modules.items() if name not in before}\n"
        "loaders = {name: type(spec.loader).__name__ for name, spec in specs.items() if spec and '.' in name}\n"
        "print(json.dumps(loaders))"
    )
    loaders = _last_line([sys.executable, "-c", code])
    found = {name for name, loader in loaders.items() if loader == "PackageLoader"}
    assert len([name for name in found if name.startswith(OWN)]) > 300
    assert {name.partition(".")[0] for name in found} >= {"click", "msgspec", "numpy", "yaml"}
    assert {name for name, loader in loaders.items() if loader == "SourceFileLoader"} <= ON_USE


def _last_line(command: Sequence[str]) -> dict[str, str]:
    """Return the mapping that a command prints in its last line."""
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    mapping: dict[str, str] = json.loads(out.splitlines()[-1])
    return mapping


@pytest.mark.parametrize("make", [Path.mkdir, lambda file: file.symlink_to("nowhere")], ids=["a folder", "a link"])
def test_a_name_of_no_file_is_no_module(make: Callable[[Path], None], tmp_path: Path) -> None:
    """What is named as a module, and is a folder or a link to nowhere, is no module, as Python says it."""
    make(tmp_path / "odd.py")
    spec = PackageModules().find_spec("package.odd", [str(tmp_path)])
    assert spec is not None
    assert isinstance(spec.loader, PackageLoader)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'package\.odd'$"):
        spec.loader.get_code("package.odd")
