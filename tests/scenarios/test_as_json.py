"""Records as JSON values: the keys of marked and of other fields."""

import json
from typing import Annotated, Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from scenarios.summaries.as_json import ABSENT, INLINE, as_json, json_text


class Inner(Struct, frozen=True):
    """Two keys."""

    x: int = 1
    y: int | None = None


class Outer(Struct, frozen=True, kw_only=True):
    """A field of each kind."""

    plain: int | None = None
    within: tuple[Inner, ...] = ()
    limited: Annotated[int | None, Meta(description="no mark")] = None
    absent: Annotated[int | None, ABSENT] = None
    inline: Annotated[Inner | None, INLINE] = None
    last: int = 0


class Derived(Outer, frozen=True, kw_only=True):
    """The same fields, and one more."""

    more: Annotated[int | None, ABSENT] = None


def test_none_of_a_marked_field_has_no_key() -> None:
    """A field without a mark is null; a marked one is left out, in a derived record too."""
    assert as_json(Outer()) == {"plain": None, "within": [], "limited": None, "last": 0}
    assert as_json(Derived()) == as_json(Outer())


def test_keys_stand_in_the_order_of_fields() -> None:
    """The keys of an inline field's value take its place among the others."""
    found = as_json(Derived(within=(Inner(),), absent=2, inline=Inner(3), more=4))
    rows = [("plain", None), ("within", [{"x": 1, "y": None}]), ("limited", None), ("absent", 2)]
    assert list(found.items()) == [*rows, ("x", 3), ("y", None), ("last", 0), ("more", 4)]


TEXT = st.text(st.characters(exclude_categories=()), max_size=9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda held: st.lists(held, max_size=3) | st.dictionaries(TEXT, held, max_size=3),
)


@given(value=JSON)
def test_text_is_that_of_json_with_an_indent(value: Any) -> None:
    """Whatever is held: numbers that are none and names that are no Unicode as well."""
    assert json_text(value) == json.dumps(value, indent=2)
