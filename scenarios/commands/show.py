"""``simulate show FILE.yaml``: what a cluster is made of, and how a scenario's pipeline runs on it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_percent, format_rate, format_time
from scenarios.commands.shared.options import NamedPath, ScenarioPath, json_option, set_option
from scenarios.commands.shared.pictures import refuse_suffix, written
from scenarios.commands.shared.refusals import refusing_bad_input
from scenarios.console.terminal import open_console
from scenarios.reading.clusters.cluster_file import NamedTopology, cluster_of, describes_scenario
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.report.pictures.picture_file import SUFFIXES, Drawing, write_picture
from scenarios.report.pictures.topology_figure import lay_out_topology
from scenarios.report.slots.shown_schedule import ShownSchedule
from scenarios.report.slots.slot_figure import SlotDrawing
from scenarios.report.slots.slot_text import print_slots
from scenarios.workloads.loading import scenario_of
from scenarios.workloads.registry import sections
from scenarios.workloads.workload import unable
from sim.cluster.topology.facts import TopologyFacts, describe

MAX_NAMED = 8


class _Shown(Struct, frozen=True):
    """What a file describes: a cluster, the schedule of a scenario of this name, or both."""

    cluster: NamedTopology | None
    name: str = ""
    schedule: ShownSchedule | None = None


@click.command("show")
@click.argument("cluster", type=ScenarioPath(), metavar="FILE.yaml")
@set_option
@click.option("--out", type=NamedPath(), metavar="FILE.svg", help="Draw the cluster or schedule: .svg, .png or .pdf.")
@json_option
def command(cluster: Path, overrides: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Show a cluster: nodes, devices, links by kind. For a scenario also show the slots of its pipeline schedule."""
    with refusing_bad_input():
        if out is not None:
            refuse_suffix(out, SUFFIXES)
        shown = _load(cluster, overrides)
        facts = None if shown.cluster is None else describe(shown.cluster.topology)
        if out is not None:
            drawings = _drawings(shown)
            written(out, lambda: write_picture(drawings, out))
    if as_json:
        click.echo(json.dumps(_summary(shown, facts), indent=2))
        return
    console = open_console()
    if shown.cluster is not None and facts is not None:
        print_facts(shown.cluster, facts, console)
    if shown.schedule is not None:
        print_schedule(shown.schedule, "" if shown.cluster is not None else shown.name, console)
    if out is not None:
        click.echo(f"drawn to {out}")


def _load(path: Path, overrides: Sequence[str]) -> _Shown:
    document = read_document(path)
    if not describes_scenario(document, overrides):
        return _Shown(cluster_of(document, overrides, sections()))
    scenario = scenario_of(document, overrides)
    schedule = scenario.workload.schedule(scenario)
    cluster = cluster_of(document, overrides, sections()) if "cluster" in scenario.document.data else None
    if cluster is None and schedule is None:
        raise unable(scenario, "there is neither a cluster nor a schedule to show", f"try: simulate {path}")
    return _Shown(cluster, scenario.name, schedule)


def _summary(shown: _Shown, facts: TopologyFacts | None) -> dict[str, Any]:
    summary = {} if shown.cluster is None or facts is None else summary_of(shown.cluster.name, facts)
    if shown.schedule is not None:
        summary["schedule"] = shown.schedule.as_json()
    return summary


def _drawings(shown: _Shown) -> list[Drawing]:
    drawings: list[Drawing] = []
    if shown.cluster is not None:
        drawings.append(lay_out_topology(shown.cluster.topology, title=shown.cluster.name))
    if shown.schedule is not None:
        drawings.append(SlotDrawing(shown.schedule.slots, f"{shown.name}\n{shown.schedule.words}"))
    return drawings


def print_schedule(schedule: ShownSchedule, title: str, console: Console) -> None:
    """Print a schedule: in words, then its slots; below a title, or below what stands there already."""
    console.print(Text(title, style="bold") if title else "")
    slots = schedule.slots
    times = f"{schedule.what} {format_time(slots.end_s)}, idle {format_percent(slots.idle_fraction)}"
    console.print(Text(f"{schedule.words}: {times}", style="bold"), soft_wrap=True)
    print_slots(slots, console)


def summary_of(name: str, facts: TopologyFacts) -> dict[str, Any]:
    """Return the facts as JSON has them."""
    return {
        "cluster": name,
        "nodes": facts.num_nodes,
        "devices": facts.num_devices,
        "domains": facts.num_islands,
        "adapters": facts.num_ports,
        "switches": facts.num_switches,
        "in_network_reduction": facts.in_network_reduction,
        "bisection_bytes_per_s": facts.bisection_bytes_per_s,
        "max_hops": facts.max_hops,
        "slowed_devices": list(facts.slowed_devices),
        "links": [
            {
                "kind": row.kind.words,
                "count": row.count,
                "bandwidth_bytes_per_s": row.bandwidth_bytes_per_s,
                "latency_s": row.latency_s,
                "message_s": row.message_s,
            }
            for row in facts.links
        ],
    }


def print_facts(named: NamedTopology, facts: TopologyFacts, console: Console) -> None:
    """Print the facts of a topology, for people."""
    console.print(Text(f"{named.name}, {facts.num_devices:,} devices", style="bold"))
    grid = Table.grid(padding=(0, 2))
    nodes = f"{facts.num_nodes:,}"
    if facts.num_islands != facts.num_nodes:
        nodes += f" in {_counted(facts.num_islands, 'NVSwitch domain')}"
    grid.add_row("nodes", nodes)
    if facts.num_switches:
        kinds = f"{_counted(facts.num_switches, 'switch')}{' that reduce' if facts.in_network_reduction else ''}"
        grid.add_row("network", f"{_counted(facts.num_ports, 'adapter')}, {kinds}")
    grid.add_row("bisection bandwidth", f"{format_rate(facts.bisection_bytes_per_s, 'B/s')} each way")
    grid.add_row("longest route", _counted(facts.max_hops, "link"))
    if facts.slowed_devices:
        shown = ", ".join(map(str, facts.slowed_devices[:MAX_NAMED]))
        more = f" and {len(facts.slowed_devices) - MAX_NAMED} more" if len(facts.slowed_devices) > MAX_NAMED else ""
        grid.add_row("slow devices", shown + more)
    console.print(grid)
    console.print()
    console.print(_link_table(facts))


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 'es' if name.endswith('ch') else 's'}"


def _link_table(facts: TopologyFacts) -> Table:
    headers = ("links, one direction each", "count", "bandwidth", "latency", "per message")
    table = Table(*headers, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in facts.links:
        rate = format_rate(row.bandwidth_bytes_per_s, "B/s")
        times = (format_time(row.latency_s), format_time(row.message_s))
        table.add_row(row.kind.words, f"{row.count:,}", rate, *times)
    return table
