"""The YAML files that are packaged with the cost models: the hardware catalogue and the profiles."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from costmodels.yaml_loader import loaded

_FOLDER: Final = Path(__file__).parent
_ENTRY: Final = re.compile(r"^(?=[\w.-]+:)", re.MULTILINE)
_ANCHOR: Final = re.compile(r"(?<![^\s\[{,])&([\w-]+)")
_ALIAS: Final = re.compile(r"(?<![^\s\[{,])\*([\w-]+)")


def packaged_yaml(folder: str, name: str) -> Mapping[str, Any]:
    """Return a packaged YAML file of a folder, e.g. ``packaged_yaml("profiles", "a100")``."""
    return _parsed(_text(folder, name))


def packaged_names(folder: str) -> tuple[str, ...]:
    """Return the names of all packaged YAML files of a folder, sorted."""
    return tuple(sorted(file.stem for file in (_FOLDER / folder).glob("*.yaml")))


def packaged_entries(folder: str, name: str) -> Mapping[str, Any]:
    """Return the same mapping for a file with many entries, of which few are asked for: each is parsed on first use."""
    return _Entries(_text(folder, name))


class _Entries(Mapping[str, Any]):
    """The top-level entries of a YAML text. An entry is parsed with those whose anchors it refers to."""

    def __init__(self, text: str) -> None:
        self._texts = {part.partition(":")[0]: part for part in _ENTRY.split(text)[1:]}
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._read:
            needed = self._with_anchors(name)
            self._read[name] = _parsed("".join(part for key, part in self._texts.items() if key in needed))[name]
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def _with_anchors(self, name: str) -> set[str]:
        """Return the names of an entry and of all entries that it needs. Raises KeyError for an unknown one."""
        found, left = {name}, [name]
        while left:
            for anchor in _ALIAS.findall(self._texts[left.pop()]):
                owner = self._owners.get(anchor, name)
                if owner not in found:
                    found.add(owner)
                    left.append(owner)
        return found

    @cached_property
    def _owners(self) -> Mapping[str, str]:
        """Return the entry of each anchor."""
        return {anchor: key for key, part in self._texts.items() for anchor in _ANCHOR.findall(part)}


def _text(folder: str, name: str) -> str:
    return (_FOLDER / folder / f"{name}.yaml").read_text(encoding="utf-8")


def _parsed(text: str) -> Mapping[str, Any]:
    entries: Mapping[str, Any] = loaded(text)
    return entries
