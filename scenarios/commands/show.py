"""``simulate show CLUSTER.yaml``: what a cluster's topology is made of."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_rate, format_time
from scenarios.cluster_file import NamedTopology, load_cluster
from scenarios.commands.options import json_option
from scenarios.commands.refusals import refusing_bad_input
from scenarios.console import open_console
from scenarios.errors import Origin, ScenarioError
from scenarios.report.topology_figure import SUFFIXES, write_topology_figure
from sim.cluster.topology.facts import TopologyFacts, describe

MAX_NAMED = 8


@click.command("show")
@click.argument("cluster", type=click.Path(path_type=Path), metavar="CLUSTER.yaml")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw it: .svg, .png or .pdf.")
@json_option
def command(cluster: Path, out: Path | None, as_json: bool) -> None:
    """Show the topology of a cluster: nodes, devices, links by kind, bisection bandwidth, longest route."""
    with refusing_bad_input():
        if out is not None:
            _refuse_suffix(out)
        named = load_cluster(cluster)
        facts = describe(named.topology)
        if out is not None:
            _draw(named, out)
    if as_json:
        click.echo(json.dumps(summary_of(named.name, facts), indent=2))
        return
    print_facts(named, facts, open_console())
    if out is not None:
        click.echo(f"drawn to {out}")


def summary_of(name: str, facts: TopologyFacts) -> dict[str, Any]:
    """Return the facts as JSON has them."""
    return {
        "cluster": name,
        "nodes": facts.num_nodes,
        "devices": facts.num_devices,
        "domains": facts.num_islands,
        "adapters": facts.num_ports,
        "switches": facts.num_switches,
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
    """Print what a topology amounts to, for people."""
    console.print(Text(f"{named.name}, {facts.num_devices:,} devices", style="bold"))
    grid = Table.grid(padding=(0, 2))
    nodes = f"{facts.num_nodes:,}"
    if facts.num_islands != facts.num_nodes:
        nodes += f" in {_counted(facts.num_islands, 'NVSwitch domain')}"
    grid.add_row("nodes", nodes)
    if facts.num_switches:
        grid.add_row("network", f"{_counted(facts.num_ports, 'adapter')}, {_counted(facts.num_switches, 'switch')}")
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


def _refuse_suffix(out: Path) -> None:
    if out.suffix.lower() not in SUFFIXES:
        rule = f"{out.suffix or 'a name without ending'} is no kind of picture"
        raise ScenarioError(Origin(option=f"--out {out}"), "", rule, f"write a name that ends in {', '.join(SUFFIXES)}")


def _draw(named: NamedTopology, out: Path) -> None:
    """Write the picture, or say why it cannot be written."""
    try:
        write_topology_figure(named.topology, out, title=named.name)
    except OSError as error:
        rule = f"the picture cannot be written: {(error.strerror or str(error)).lower()}"
        remedy = "name a file in a directory that you may write to"
        raise ScenarioError(Origin(option=f"--out {out}"), "", rule, remedy) from error
