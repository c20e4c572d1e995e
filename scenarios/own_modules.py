"""The program's own modules, found and read by few calls of the system: a command asks for some 470 of them.

Python asks five finders for each module, looks at its folder anew, and reads its compiled file by eight calls. Here a
folder is listed once, and a file is read by four calls. All else is as Python has it: its loader compiles, and checks
and keeps compiled files. A module that is not found here, such as one whose file came later, is looked for as usual.
"""

import os
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from typing import Final

OWN: Final = ("backends.", "costmodels.", "scenarios.", "sim.", "traces.")
"""How names of the program's modules begin."""


class OwnModules:
    """Finds modules in the folders of the program's packages."""

    def __init__(self) -> None:
        self._names_in: dict[str, frozenset[str]] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return where a module or package of the program is; None for others. ``path``: the folder of its package."""
        if not fullname.startswith(OWN) or path is None or len(path) != 1:
            return None
        name = fullname.rpartition(".")[2]
        names, location = self._names(path[0]), f"{path[0]}{os.sep}{name}"
        if name in names and "__init__.py" in self._names(location):
            file, folders = f"{location}{os.sep}__init__.py", [location]
        elif f"{name}.py" in names:
            file, folders = f"{location}.py", None
        else:
            return None
        loader = OwnLoader(fullname, file)
        return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=folders)

    def _names(self, folder: str) -> frozenset[str]:
        """Return the names of the files of a folder; none of what is no folder, such as part of an archive."""
        if folder not in self._names_in:
            try:
                self._names_in[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._names_in[folder] = frozenset()
        return self._names_in[folder]


class OwnLoader(SourceFileLoader):
    """Loads a module as Python does, and reads its files without a buffer."""

    def get_data(self, path: str) -> bytes:
        """Return what a file holds."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.read(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
