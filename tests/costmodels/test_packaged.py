"""Packaged YAML files whose entries are parsed one by one."""

import pytest

from costmodels.packaged import packaged_entries, packaged_yaml


@pytest.mark.parametrize("name", ["devices", "nodes", "topologies"])
def test_each_entry_is_that_of_the_whole_file(name: str) -> None:
    """An entry by itself is what the whole file has under its name, whatever other entries it refers to."""
    whole, entries = packaged_yaml("catalogue", name), packaged_entries("catalogue", name)
    assert list(entries) == list(whole)
    assert len(entries) == len(whole)
    for key in reversed(whole):  # one that refers to others comes before them
        assert packaged_entries("catalogue", name)[key] == entries[key] == whole[key]


def test_an_unknown_entry_is_missed() -> None:
    """A name that is in no file is not in the mapping, and raises KeyError."""
    entries = packaged_entries("catalogue", "nodes")
    assert "h100" not in entries
    with pytest.raises(KeyError):
        _ = entries["h100"]
