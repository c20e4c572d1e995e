"""``simulate spread PROFILE.yaml TABLE ...``: state in a profile how far off it is, from measurements."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.profile import SPREAD_SECTION
from costmodels.units import format_percent
from scenarios.calibration.request import refuse_unwritable_files, write_section
from scenarios.commands.shared.options import NamedPath, ProfileFile, bundling, json_option
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.terminal import open_console
from scenarios.errors import Origin, ScenarioError
from scenarios.fitting.spread_fit import SpreadRequest, measured_families, read_evidence
from scenarios.reading.clusters.profile_file import PROFILE_HINT, profile_of
from scenarios.reading.documents.text_file import read_text
from scenarios.reading.documents.yaml_tree import document_of

_MUCH: Final = 3.0
"""A family that is so many times as far off as stated may be of another machine."""
_LEGEND: Final = (
    "deviation: standard deviation of log(measured/predicted), from the least to the largest over the calls' lengths; "
    "in common, with near ones: parts of its square that all calls, and those of like shapes, share"
)


@click.command("spread")
@click.argument("profile", type=NamedPath(), metavar="PROFILE.yaml")
@click.argument("tables", nargs=-1, type=NamedPath(), metavar="[TABLE]...")
@click.option("--out", type=ProfileFile(), required=True, metavar="PROFILE.yaml", help="File to write.")
@click.option(
    "--constants",
    "num_constants",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of constants that were fitted to the steps of the tables.",
)
@click.option("--all-groups", is_flag=True, help="Count steps of every group, not only of the group `fitted`.")
@click.option("--trace", type=NamedPath(), help="PyTorch profile with shapes, for memory-bound kernels.")
@click.option("--recorded-on", "trace_node", metavar="NODE", help="Node of the trace. Default: that of the profile.")
@click.option("--system", metavar="NAME", help="Take the rows of this system from a table of collectives.")
@json_option
@bundling(SpreadRequest)
def command(request: SpreadRequest, profile: Path, out: Path, as_json: bool) -> None:
    """Estimate the errors of a profile from measurements, and write them into it; nothing else of it changes.

    A TABLE is what simulate calibrate --from takes, or a sidecar (.yaml) of measured collectives or steps.
    """
    with refusing_bad_input():
        refuse_unwritable_files(out)
        if profile.suffix in {".parquet", ".csv"}:
            remedy = "write simulate spread PROFILE.yaml TABLE ... --out PROFILE.yaml"
            raise ScenarioError(Origin(str(profile)), "", "the profile comes first, and the tables after it", remedy)
        text = read_text(profile, PROFILE_HINT)
        document = document_of(text, profile, PROFILE_HINT)
        calibrated, stated = profile_of(document), document.data[SPREAD_SECTION]
        found = measured_families(calibrated, read_evidence(request))
        write_section(text, profile, SPREAD_SECTION, {**stated, **found}, out)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print(found, stated, open_console(), out)
    for family, entry in found.items():
        if family in stated and _deviations(entry)[-1] > _MUCH * _deviations(stated[family])[-1]:
            warning = (
                f"{family} has much larger errors than the profile states: were these measured on {calibrated.node}?"
            )
            click.echo(f"warning: {warning}", err=True)


def _deviations(entry: Mapping[str, Any]) -> list[float]:
    """Return the deviations of a family, whatever the length of calls, the least first."""
    by_length = entry["deviation"]
    return sorted(by_length.values() if isinstance(by_length, Mapping) else [by_length])


def _span(entry: Mapping[str, Any]) -> str:
    deviations = _deviations(entry)
    return " to ".join(f"{100 * value:.1f}" for value in dict.fromkeys((deviations[0], deviations[-1]))) + " %"


def _print(
    found: Mapping[str, Mapping[str, Any]], stated: Mapping[str, Mapping[str, Any]], console: Console, out: Path
) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("measured against predicted")
    for words in ("deviation", "before", "in common", "with near ones"):
        table.add_column(words, justify="right")
    for family, entry in found.items():
        cells = [_span(entry), _span(stated[family]) if family in stated else "-"]
        cells += [format_percent(entry[key], 0) if key in entry else "-" for key in ("common", "near")]
        table.add_row(family, *cells)
    console.print(table)
    console.print(Text(_LEGEND, "dim"), soft_wrap=True)
    console.print(Text(f"written to {out}; the other families are as in the profile", "dim"), soft_wrap=True)
