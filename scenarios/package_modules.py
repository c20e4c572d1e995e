"""Modules of packages, found and read by few calls of the system: a command asks for some 600 of them.

Python asks five finders for each module, looks at its folder anew, and reads its compiled file by eight calls. Here a
folder is listed once, and a file is read by four calls. All else is as Python has it: which file a module has, whether
its compiled file is up to date, and what compiles and keeps it. A module that is not found here, such as an extension
or one whose file came later, is looked for as usual, and one whose compiled file is not up to date is loaded as usual.
"""

import os
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from marshal import loads
from types import CodeType
from typing import Final

_UP_TO_DATE: Final = MAGIC_NUMBER + bytes(4)
"""How a compiled file begins that this Python has written, and that is checked by the time and size of its source."""
_EXTENSIONS: Final = tuple(EXTENSION_SUFFIXES)


class PackageModules:
    """Finds modules in the folders of packages."""

    def __init__(self) -> None:
        self._files_in: dict[str, frozenset[str]] = {}
        self._compiled_in: dict[str, tuple[str, str]] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return where a Python module or package is; None for what is no such file. ``path``: that of its package."""
        if path is None or len(path) != 1:
            return None
        folder, name = path[0], fullname.rpartition(".")[2]
        files = self._files(folder)
        if name in files and "__init__.py" in self._files(inner := f"{folder}{os.sep}{name}"):
            return self._spec(fullname, inner, "__init__", [inner])
        return self._spec(fullname, folder, name, None) if f"{name}.py" in files else None

    def _files(self, folder: str) -> frozenset[str]:
        """Return the names of the files of a folder; none of what is no folder, such as part of an archive.

        Left out are Python files beside an extension of their name, which goes before them.
        """
        if folder not in self._files_in:
            try:
                files = os.listdir(folder)
            except OSError:
                files = []
            extensions = [file.partition(".")[0] for file in files if file.endswith(_EXTENSIONS)]
            self._files_in[folder] = frozenset(files).difference(f"{name}.py" for name in extensions)
        return self._files_in[folder]

    def _spec(self, fullname: str, folder: str, name: str, folders: list[str] | None) -> ModuleSpec:
        file = f"{folder}{os.sep}{name}.py"
        loader = PackageLoader(fullname, file, name.join(self._compiled(folder)))
        spec = ModuleSpec(fullname, loader, origin=file)
        spec.submodule_search_locations, spec.has_location, spec.cached = folders, True, loader.compiled
        return spec

    def _compiled(self, folder: str) -> tuple[str, str]:
        """Return what stands before and after a module's name in the path of its compiled file."""
        if folder not in self._compiled_in:
            before, _, after = cache_from_source(f"{folder}{os.sep}name.py").rpartition("name")
            self._compiled_in[folder] = before, after
        return self._compiled_in[folder]


class PackageLoader(SourceFileLoader):
    """Loads a module as Python does, and reads its files without a buffer. ``compiled``: its compiled file."""

    def __init__(self, fullname: str, path: str, compiled: str) -> None:
        super().__init__(fullname, path)
        self.compiled = compiled

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's code, from its compiled file where that is up to date and was made at this place."""
        try:
            compiled, source = self.get_data(self.compiled), os.stat(self.path)
        except OSError:
            if not os.path.isfile(self.path):  # a folder, or a link to nowhere
                raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname) from None
            return super().get_code(fullname)
        if compiled[:8] == _UP_TO_DATE and compiled[8:16] == _time_and_size(source):
            code: CodeType = loads(memoryview(compiled)[16:])
            if code.co_filename == self.path:
                return code
        return super().get_code(fullname)

    def get_data(self, path: str) -> bytes:
        """Return what a file holds."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.read(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)


def _time_and_size(source: os.stat_result) -> bytes:
    """Return when a file was changed and its size, as a compiled file holds them: the lowest four bytes of each."""
    return (int(source.st_mtime) & 0xFFFFFFFF | (source.st_size & 0xFFFFFFFF) << 32).to_bytes(8, "little")
