"""Quantities are parsed once, with units, and refused when they are ambiguous."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.errors import UnitError
from costmodels.units import (
    Dimension,
    format_bytes,
    format_change,
    format_percent,
    format_rate,
    format_time,
    format_tokens_rate,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "dimension", "expected"),
    [
        ("2.5 us", Dimension.TIME, 2.5e-6),
        ("2.5us", Dimension.TIME, 2.5e-6),
        (" 3 min ", Dimension.TIME, 180.0),
        ("1e-3 h", Dimension.TIME, 3.6),
        ("54 d", Dimension.TIME, 54 * 86400.0),
        ("54 days", Dimension.TIME, 54 * 86400.0),
        (".5 ms", Dimension.TIME, 5e-4),
        ("80 GiB", Dimension.BYTES, 80 * 2**30),
        ("80 GB", Dimension.BYTES, 80e9),
        ("1 TiB", Dimension.BYTES, 2.0**40),
        ("400 Gbit/s", Dimension.BANDWIDTH, 50e9),
        ("50 GB/s", Dimension.BANDWIDTH, 50e9),
        ("1 GiB/s", Dimension.BANDWIDTH, 2.0**30),
        ("312 TFLOP/s", Dimension.FLOP_RATE, 312e12),
        ("1.41 GHz", Dimension.FREQUENCY, 1.41e9),
        ("0 s", Dimension.TIME, 0.0),
    ],
)
def test_quantity_becomes_si_number(text: str, dimension: Dimension, expected: float) -> None:
    """A number with a unit becomes the SI value."""
    assert parse_quantity(text, dimension) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "problem"),
    [
        ("80", Dimension.BYTES, "has no unit"),
        (80, Dimension.BYTES, "has no unit"),
        (2.5, Dimension.TIME, "has no unit"),
        ("400 Gb/s", Dimension.BANDWIDTH, "bits or bytes"),
        ("400 Gbps", Dimension.BANDWIDTH, "bits or bytes"),
        ("400 Gbit/s", Dimension.BYTES, "is a unit of bandwidth"),
        ("80 GiB", Dimension.BANDWIDTH, "is a unit of size in bytes"),
        ("3 parsec", Dimension.TIME, "is not a known unit"),
        ("312 TFLOPS", Dimension.FLOP_RATE, r"did you mean TFLOP/s?"),
        ("80 gib", Dimension.BYTES, "did you mean GiB?"),
        ("-1 s", Dimension.TIME, "finite and not negative"),
        ("1e999 s", Dimension.TIME, "finite and not negative"),
        ("nan s", Dimension.TIME, "is not a number"),
        ("fast", Dimension.TIME, "is not a number"),
        ("", Dimension.TIME, "is not a number"),
        (None, Dimension.TIME, "is not a number"),
        (True, Dimension.TIME, "is not a number"),
        (["1 s"], Dimension.TIME, "is not a number"),
    ],
)
def test_wrong_quantity_is_refused_with_remedy(text: object, dimension: Dimension, problem: str) -> None:
    """The error says what was written, what is wrong, which units are allowed, and an example."""
    with pytest.raises(UnitError) as raised:
        parse_quantity(text, dimension)
    message = str(raised.value)
    assert problem in message
    assert repr(text) in message
    assert "needs one of the units" in message
    assert "e.g. '" in message


def test_bits_and_bytes_never_mix() -> None:
    """A line rate in bits is an eighth of the same figure in bytes."""
    assert 8 * parse_quantity("1 Gbit/s", Dimension.BANDWIDTH) == parse_quantity("1 GB/s", Dimension.BANDWIDTH)


@given(st.floats(1e-9, 1e9), st.sampled_from(["ns", "us", "ms", "s"]))
def test_time_survives_formatting(value: float, unit: str) -> None:
    """What format_time prints is a quantity again, of the same value to 4 digits."""
    duration_s = parse_quantity(f"{value!r} {unit}", Dimension.TIME)
    assert parse_quantity(format_time(duration_s), Dimension.TIME) == pytest.approx(duration_s, rel=1e-3)


@given(st.integers(0, 2**50))
def test_bytes_survive_formatting(num_bytes: int) -> None:
    """What format_bytes prints is a quantity again, of the same value to 3 digits at least, however small."""
    assert parse_quantity(format_bytes(num_bytes), Dimension.BYTES) == pytest.approx(num_bytes, rel=0.005)


@given(st.integers(1, 2**40))
def test_bytes_are_shown_in_the_largest_unit_of_which_there_is_one(num_bytes: int) -> None:
    """Below GiB no number reaches 1,024, and above B none is below one."""
    number, unit = format_bytes(num_bytes).split()
    assert unit == "GiB" or float(number) < 1024
    assert unit == "B" or float(number) >= 1


def test_tables_get_readable_figures() -> None:
    """Formatted figures carry the unit that people expect."""
    assert format_time(0.0) == "0 s"
    assert format_time(1.5e-3) == "1.5 ms"
    assert format_time(0.99999e-6) == "1 us"
    assert format_time(-0.9e-6) == "-900 ns"
    assert format_time(7200) == "2 h"
    assert format_time(47 * 3600) == "47 h"
    assert format_time(54 * 86400) == "54 d"
    assert format_time(1e10) == "115741 d"
    assert (format_tokens_rate(4746.2), format_tokens_rate(0.0356)) == ("4,746 tokens/s", "0.0356 tokens/s")
    assert format_bytes(80 * 2**30) == "80.00 GiB"
    assert format_bytes(512) == "512 B"
    assert format_bytes(20.5 * 2**20) == "20.50 MiB"
    assert format_bytes(2**30 - 1) == "1.00 GiB"
    assert format_rate(1.48e14, "FLOP/s") == "148 TFLOP/s"
    assert format_rate(12.5e9, "B/s") == "12.5 GB/s"
    assert format_rate(3.0, "tokens/s") == "3 tokens/s"


@pytest.mark.parametrize(
    ("fraction", "decimals", "plain", "change"),
    [(0.125, 1, "12.5 %", "+12.5 %"), (-0.5, 0, "-50 %", "-50 %"), (0.0004, 2, "0.04 %", "+0.04 %")],
)
def test_fractions_are_shown_in_per_cent(fraction: float, decimals: int, plain: str, change: str) -> None:
    """Parts have so many decimals; relative differences have a sign, too."""
    assert format_percent(fraction, decimals) == plain
    assert format_change(fraction, decimals) == change
