"""Tables of a calibrated profile's parameters: packaged values, fitted values, and uncertainty."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from costmodels.calibration.document import rates_entry
from costmodels.errors import UnitError
from costmodels.hardware import load_node
from costmodels.profile import SECTIONS, packaged_entry
from costmodels.units import Dimension, format_percent, format_rate, format_time, parse_quantity
from scenarios.report.blocks import Columns, Group, Section, Table
from scenarios.summaries.measured.calibration import Certainty

_TITLES: Final = {
    "measured": "rates of the machine",
    "gemm": "matrix products",
    "attention": "fused attention",
    "decode": "attention of new tokens",
    "elementwise": "memory-bound kernels",
    "optimizer": "optimizer",
    "sustained": "sustained clock",
    "network": "collectives and messages",
    "kernels": "kernels by name",
}
_QUANTITIES: Final[Mapping[Dimension, Callable[[float], str]]] = {
    Dimension.TIME: format_time,
    Dimension.BANDWIDTH: lambda rate: format_rate(rate, "B/s"),
    Dimension.FLOP_RATE: lambda rate: format_rate(rate, "FLOP/s"),
    Dimension.BYTES: lambda size: format_rate(size, "B"),
}
_WHOLE: Final = 1e4
"""Numbers from here on are shown without decimals: areas of tiles are whole."""
_LEAD: Final = (
    "Standard errors (±) are relative, with the other parameters of the section free. There is none where a fit ended "
    "at a limit of what the parameter may be, and where the measurements do not settle it."
)


def parameter_sections(
    entry: Mapping[str, Any], fitted_sections: Collection[str], certainty: Certainty
) -> list[Section]:
    """Return a table per fitted section of a profile's file: packaged values, fitted values, and uncertainty."""
    node = load_node(entry["node"])
    before = {**packaged_entry(node.device.profile), "measured": rates_entry(node)}
    names = [name for name in ("measured", *fitted_sections) if name in entry and name != "kernels"]
    parts = []
    for name in names:
        old = dict(_flat(before.get(name, {}), name))
        rows = [
            (path.removeprefix(f"{name}.").removeprefix("protocols."), old.get(path, "–"), words, error)
            for path, words in _flat(entry[name], name)
            if (error := _error_words(path, certainty)) or words != old.get(path, words)
        ]
        head = ("parameter", "packaged", "fitted", "standard error")
        parts.append(Group((Table(head, rows),), _TITLES[name]))
    if "kernels" in entry:
        parts.append(Group((_kernels(entry["kernels"], certainty),), _TITLES["kernels"]))
    kept = [_TITLES[name] for name in SECTIONS if name not in fitted_sections]
    note = f"As packaged, because they have too few measurements: {', '.join(kept)}." if kept else ""
    return [Section("Parameters", (Columns(tuple(parts), is_packed=True),), _LEAD, note)]


def _kernels(kernels: Mapping[str, Any], certainty: Certainty) -> Table:
    rows = [
        (
            name, f"{kernel['slowdown']:.4g}", _error_words(f"kernels.{name}.slowdown", certainty),
            _words(kernel["latency"]), _error_words(f"kernels.{name}.latency", certainty),
        )
        for name, kernel in kernels.items() if name != "source"
    ]  # fmt: skip
    return Table(("kernel", "slowdown", "±", "fixed time", "±"), rows)


def _error_words(path: str, certainty: Certainty) -> str:
    """Return the standard error of a parameter, or the reason for having none; empty if it was not fitted."""
    if path in certainty.standard_errors:
        error = certainty.standard_errors[path]
        return format_percent(error, 0 if error >= 0.1 else 1)
    if path in certainty.without_standard_error.at_limit:
        return "at its limit"
    return "not settled" if path in certainty.without_standard_error.not_settled else ""


def _flat(part: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the values of a section as (dotted path, words); protocols are named."""
    if isinstance(part, Mapping):
        for key, inner in part.items():
            if key not in {"source", "name"}:
                yield from _flat(inner, f"{path}.{key}")
    elif isinstance(part, list) and part and isinstance(part[0], Mapping):
        for inner in part:
            yield from _flat(inner, f"{path}.{inner['name']}")
    else:
        yield path, _words(part)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join("x".join(map(str, item)) if isinstance(item, list) else str(item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:.4g}"
    for dimension, words in _QUANTITIES.items():
        try:
            return words(parse_quantity(value, dimension))
        except UnitError:
            continue
    return str(value)
