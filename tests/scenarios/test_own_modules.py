"""The program's own modules are those that Python finds, and a command finds them by itself."""

import json
import subprocess
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from zipfile import ZipFile

from scenarios.on_use import ON_USE
from scenarios.own_modules import OWN, OwnLoader, OwnModules

ROOT = Path(__file__).parents[2]


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
    modules = OwnModules()
    assert len(MODULES) > 700
    for name, folder in MODULES:
        assert _place(modules.find_spec(name, [folder])) == _place(PathFinder.find_spec(name, [folder]))


def test_other_modules_are_looked_for_by_python(tmp_path: Path) -> None:
    """What is nobody's file of that name, or is not the program's, is not found here."""
    modules = OwnModules()
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
    assert modules.find_spec("json.decoder", [str(ROOT)]) is None


def test_a_package_goes_before_a_module_of_its_name(tmp_path: Path) -> None:
    """A folder with ``__init__.py`` is found, and not the file beside it, as Python has it."""
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / "__init__.py").touch()
    (tmp_path / "twice.py").touch()
    places = [finder("sim.twice", [str(tmp_path)]) for finder in (OwnModules().find_spec, PathFinder.find_spec)]
    assert _place(places[0]) == _place(places[1])


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    """The bytes of a file are those that are in it, also of one that is empty or large."""
    for content in (b"", b"a\r\nb\0", bytes(range(256)) * 4096):
        (tmp_path / "file").write_bytes(content)
        assert OwnLoader("sim.file", "").get_data(str(tmp_path / "file")) == content


def test_a_command_finds_its_modules_by_itself() -> None:
    """All modules that a step's command imports come this way; Python finds those that the command begins with."""
    code = (
        "import json, sys; from scenarios.cli import main; before = set(sys.modules)\n"
        "try: main(['tiny-gpt-2x2', '--json'])\n"
        "except SystemExit: print()\n"
        "loaders = {name: type(module.__spec__.loader).__name__ for name, module in sys.modules.items()\n"
        f"           if name.startswith({OWN}) and name not in before}}\n"
        "print(json.dumps(loaders))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    loaders: dict[str, str] = json.loads(out.splitlines()[-1])
    found = {name for name, loader in loaders.items() if loader == "OwnLoader"}
    assert len(found) > 300
    assert set(loaders) - found <= ON_USE
