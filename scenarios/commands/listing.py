"""``simulate list``: what there is to name in a scenario."""

import json
from collections.abc import Callable
from typing import Any, Final, get_args

import click
from rich.table import Table
from rich.text import Text

from costmodels.hardware import DeviceSpec, list_nodes, load_node
from costmodels.kernels import KERNELS
from costmodels.units import format_bytes, format_rate
from scenarios.commands.shared.options import json_option
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.terminal import open_console
from scenarios.library.shipped import FOLDER, RECORDINGS, recording_names, scenario_names
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.reading.models.model_presets import load_presets
from scenarios.reading.models.moe_systems import load_moe_systems
from scenarios.reading.schema.training import TrainingSection
from scenarios.reading.sections.section import keys_of
from scenarios.workloads import registry
from sim.cluster.topology.catalogue import list_topologies, load_topology
from sim.training.pipeline.rules import TRAITS
from sim.training.spec.precision import PRECISIONS

KINDS = (
    "workloads", "scenarios", "recordings", "nodes", "topologies", "presets", "moe_systems", "schedules", "recompute",
    "precisions", "kernels",
)  # fmt: skip


@click.command("list")
@click.argument("kinds", nargs=-1, type=click.Choice(KINDS), metavar=f"[{'|'.join(KINDS)}]...")
@json_option
def command(kinds: tuple[str, ...], as_json: bool) -> None:
    """List what there is to name: scenarios, recordings, nodes, topologies, presets, schedules, kernels, ..."""
    with refusing_bad_input():
        records = {kind: _RECORDS[kind]() for kind in kinds or KINDS}
    if as_json:
        click.echo(json.dumps(records, indent=2))
        return
    console = open_console()
    for kind, rows in records.items():
        console.print(_table(kind, rows))
        console.print()


def _scenarios() -> list[dict[str, Any]]:
    """Return the scenarios that come with the program: what the command line calls them, and what they are."""
    return [{"name": name, "what": read_document(FOLDER / f"{name}.yaml").data["name"]} for name in scenario_names()]


def _recordings() -> list[dict[str, Any]]:
    """Return the recordings that come with the program: their names, what they show, and where they are from."""
    sources = read_document(RECORDINGS / "sources.yaml").data
    return [{"name": name, **{key: sources[name][key] for key in ("what", "source")}} for name in recording_names()]


def _nodes() -> list[dict[str, Any]]:
    nodes = [load_node(name) for name in list_nodes()]
    return [
        {
            "name": node.name,
            "devices": f"{node.devices_per_node} x {node.device.name}",
            "memory": format_bytes(node.device.memory_bytes),
            "dense peak": _peak(node.device),
            "link inside": format_rate(node.intra.bandwidth_bytes_per_s, "B/s"),
            "network": f"{node.nics_per_node} x {format_rate(8 * node.nic.bandwidth_bytes_per_s, 'bit/s')}",
            "USD/h": "-" if (price := node.device.price_usd_per_s) is None else f"{3600.0 * price:.2f}",
            "profile": node.device.profile,
        }
        for node in nodes
    ]


def _peak(device: DeviceSpec) -> str:
    """Return the peak of the precision that one trains in, with its name: fp32, or one of 16 bits that is faster."""
    precision = max(("fp32", "bf16", "fp16"), key=lambda name: device.peak(PRECISIONS[name].product))
    return f"{format_rate(device.peak(PRECISIONS[precision].product), 'FLOP/s')} {precision}"


def _topologies() -> list[dict[str, Any]]:
    """Return the topologies of the catalogue: the layout of their nodes, and what joins these."""
    entries = {name: load_topology(name, "") for name in list_topologies()}
    return [
        {"name": name, "nodes": entry["nodes"], "fabric": entry["fabric"]["kind"]} for name, entry in entries.items()
    ]


def _presets() -> list[dict[str, Any]]:
    columns = ("family", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "sequence_length", "vocab_size")
    return [
        {"name": preset.name, **{key: preset.keys.get(key, "") for key in columns}, "source": preset.source}
        for preset in load_presets().values()
    ]


def _moe_systems() -> list[dict[str, Any]]:
    """Return the systems for mixtures of experts, what they do, and where their settings come from."""
    return [{"name": s.name, "what": s.what, "source": s.source} for s in load_moe_systems().values()]


def _cited(source: str) -> str:
    """Return authors and year, the start of a citation."""
    return source.split(",", maxsplit=1)[0]


def _choices(section: type[TrainingSection], key: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in get_args(keys_of(section)[key].annotation)]


def _schedules() -> list[dict[str, Any]]:
    """Return all schedules: how many stages a rank may have, and where they lie."""
    return [
        {"name": name, "virtual_stages": _range(traits.fewest_stages, traits.most_stages), "stages": traits.placement}
        for name, traits in TRAITS.items()
    ]


def _range(fewest: int, most: int) -> str:
    if fewest == most:
        return str(fewest)
    return f"{fewest} or more"


def _table(kind: str, rows: list[dict[str, Any]]) -> Table | Text:
    """Return a table, or one line where the records have nothing but a name."""
    if all(set(row) == {"name"} for row in rows):
        return Text(f"{kind}: {', '.join(row['name'] for row in rows)}")
    table = Table(title=kind, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for key in rows[0]:
        table.add_column(key.replace("num_", "").replace("_", " "), no_wrap=key == "name")
    for row in rows:
        table.add_row(*(Text(_cited(value) if key == "source" else str(value)) for key, value in row.items()))
    return table


_RECORDS: Final[dict[str, Callable[[], list[dict[str, Any]]]]] = {
    "workloads": lambda: [{"name": kind.name, "what": kind.what} for kind in registry.workloads()],
    "scenarios": _scenarios,
    "recordings": _recordings,
    "nodes": _nodes,
    "topologies": _topologies,
    "presets": _presets,
    "moe_systems": _moe_systems,
    "schedules": _schedules,
    "recompute": lambda: _choices(TrainingSection, "recompute"),
    "precisions": lambda: _choices(TrainingSection, "precision"),
    "kernels": lambda: [{"name": name} for name in sorted(KERNELS)],
}
