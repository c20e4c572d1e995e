"""``simulate show``: the table, the JSON, the picture, and what is refused."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.cluster_file import cluster_of
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.report.pictures.topology_layout import STUB, lay_out_islands, lay_out_network, shown
from scenarios.workloads.registry import sections
from sim.cluster.topology.catalogue import list_topologies
from sim.cluster.topology.parse import parse_topology

RAILS = "cluster: {topology: superpod-h100, num_nodes: 64}\n"

OWN = """\
name: my cluster
cluster:
  num_nodes: 4
  topology:
    nodes:
      devices: 4
      inside: nvswitch
      nvlink: {bandwidth: 300 GB/s, latency: 0.3 us}
      pcie: {bandwidth: 30 GB/s}
      nics: 1
      nic: {bandwidth: 200 Gbit/s, latency: 1 us, message: 0.1 us}
    fabric: {kind: leaf-spine, leaf_ports: 2, spines: 2, oversubscription: 2}
    stragglers: [{device: 3, slowdown: 1.3}, {link: node 1 nic 0 out, slowdown: 2}]
"""


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Run the command line and return exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as caught:
        main(["show", *args])
    shown_text = capsys.readouterr()
    return int(caught.value.code or 0), shown_text.out, shown_text.err


def words(text: str) -> str:
    """Return a text with single spaces."""
    return re.sub(r"[ \t]+", " ", text)


def test_table_says_what_the_cluster_is_made_of(capsys, write) -> None:
    """Nodes, devices, bisection bandwidth, longest route, and one row per kind of link."""
    code, out, _ = run(capsys, str(write(RAILS)))
    assert code == 0
    text = words(out)
    assert "superpod-h100, 512 devices" in text
    assert "network 512 adapters, 32 switches" in text
    assert "bisection bandwidth 12.8 TB/s each way" in text
    assert "longest route 10 links" in text
    assert "nic 1,024 50 GB/s 1.05 us 0 s" in text
    assert "leaf-spine 512 100 GB/s 200 ns 0 s" in text


def test_own_topology_with_stragglers(capsys, write) -> None:
    """A user's own cluster by its own name; the slow link has a row of its own, the slow device is named."""
    text = words(run(capsys, str(write(OWN)))[1])
    assert "my cluster, 16 devices" in text
    assert "slow devices 3" in text
    assert "nic 7 25 GB/s 1 us 100 ns" in text
    assert "nic 1 12.5 GB/s 2 us 200 ns" in text
    assert "bisection bandwidth 25 GB/s each way" in text


def test_json_holds_the_same(capsys, write) -> None:
    """--json prints SI numbers under documented keys."""
    found = json.loads(run(capsys, str(write(OWN)), "--json")[1])
    links = found.pop("links")
    assert found == {
        "cluster": "my cluster", "nodes": 4, "devices": 16, "domains": 4, "adapters": 4, "switches": 4,
        "in_network_reduction": False,
        "bisection_bytes_per_s": 25e9, "max_hops": 8, "slowed_devices": [3],
    }  # fmt: skip
    assert set(links[0]) == {"kind", "count", "bandwidth_bytes_per_s", "latency_s", "message_s"}
    assert sum(row["count"] for row in links) == 4 * (2 * 4 + 2 * 4 + 2) + 2 * 4 + 2 * 4


def test_switches_that_reduce_are_shown(capsys, write) -> None:
    """In-network reduction is part of the answer."""
    text = OWN.replace("oversubscription: 2}", "oversubscription: 2, in_network_reduction: true}")
    assert "4 adapters, 4 switches that reduce" in words(run(capsys, str(write(text)))[1])
    assert json.loads(run(capsys, str(write(text)), "--json")[1])["in_network_reduction"] is True


def test_scenario_without_topology_shows_its_nodes_on_one_switch(capsys, write) -> None:
    """A scenario's ``node`` and ``num_nodes`` are enough."""
    text = words(run(capsys, str(write()))[1])
    assert "GPT 145.6B on 1,536 A100, 1,536 devices" in text
    assert "1,536 adapters, 1 switch" in text


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_picture_is_written_whole_and_always_the_same(capsys, write, tmp_path: Path, suffix: str) -> None:
    """Two drawings have the same bytes, and nothing else is left beside them."""
    path = write(OWN)
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    for picture in (first, second):
        assert run(capsys, str(path), "--out", str(picture))[0] == 0
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > 1000
    assert sorted(tmp_path.iterdir()) == sorted([path, first, second])


def test_picture_names_its_parts(capsys, write, tmp_path: Path) -> None:
    """The SVG is well-formed, its text is text, and every node, switch and device that is drawn is named."""
    picture = tmp_path / "own.svg"
    run(capsys, str(write(OWN)), "--out", str(picture))
    text = {"".join(node.itertext()).strip() for node in ElementTree.parse(picture).iter() if node.tag.endswith("text")}
    assert {"my cluster, 16 devices", "node 0", "node 3", "leaf 1", "spine 1", "gpu 3", "nvswitch", "nic 0"} <= text


@pytest.mark.parametrize("name", list_topologies())
def test_pictures_stay_readable(name: str) -> None:
    """However large the cluster, a picture has few parts, no two of them in one place, and cables between them.

    Every part has a cable: where all of its cables leave the picture, a short end of one.
    """
    topology = parse_topology(name, 512 if name.startswith("tpu") else 72)
    network = lay_out_network(topology)
    assert network is not None
    for picture in (network, *lay_out_islands(topology)):
        places = [box.at for box in picture.boxes]
        assert len(set(places)) == len(places) <= 200
        ends = {end for line in picture.lines for end in (line.start, line.end)}
        assert ends <= set(places) | {(x, y + way * STUB) for x, y in places for way in (1, -1)}
        is_part = {"device", "nic", "host", "node", "switch"}
        assert [box for box in picture.boxes if box.at not in ends and box.look in is_part] == []


def test_rows_show_the_first_and_the_last() -> None:
    """Short rows are whole; of long ones the first and the last are shown."""
    assert shown(8, 8) == list(range(8))
    assert shown(1000, 4) == [0, 1, 2, 999]


@pytest.mark.parametrize(
    ("text", "line", "key", "rule", "remedy"),
    [
        ("cluster: {topology: superpod-h10, num_nodes: 4}", 1, "cluster.topology", "no topology", "superpod-h100"),
        ("name: x\n", 0, "cluster", "required and missing", "write cluster:"),
        ("cluster: 4", 1, "cluster", "4 is no cluster", "write cluster:"),
        ("cluster: {num_nodes: 4}", 1, "cluster.topology", "required and missing", "or node: hgx-h100"),
        ("cluster:\n  topology: superpod-h100\n", 0, "cluster.num_nodes", "nothing", "how many"),
        ("cluster:\n  topology: superpod-h100\n  num_nodes: 1.5", 3, "cluster.num_nodes", "1.5", "how many"),
        ("cluster: {node: dgx-a10, num_nodes: 4}", 1, "cluster.node", "no node layout", "dgx-a100"),
        (
            "cluster: {node: dgx-2, num_nodes: 4, nodes: 3}",
            1,
            "cluster.nodes",
            "unknown key",
            "written as cluster.num_nodes here",
        ),
        ("clutser: {node: dgx-2, num_nodes: 4}", 1, "clutser", "unknown key", "did you mean cluster"),
        (OWN.replace("nics: 1", "nics: 3"), 10, "cluster.topology.nodes.nics", "3 adapters", "divides devices"),
        (OWN.replace("200 Gbit/s", "200"), 11, "cluster.topology.nodes.nic.bandwidth", "no unit", "400 Gbit/s"),
        (
            OWN.replace("device: 3", "device: 16"),
            13,
            "cluster.topology.stragglers[0].device",
            "no device 16",
            "0 to 15",
        ),
        (
            OWN.replace("kind: leaf-spine", "kind: leafspine"),
            12,
            "cluster.topology.fabric.kind",
            "'leafspine'",
            "leaf-spine",
        ),
    ],
)
def test_bad_files_are_refused(write, text: str, line: int, key: str, rule: str, remedy: str) -> None:
    """Each refusal has line, key, rule and remedy."""
    with pytest.raises(ScenarioError) as caught:
        cluster_of(read_document(write(text)), sections=sections())
    assert (caught.value.key, caught.value.line or line) == (key, line or caught.value.line)
    assert rule in caught.value.rule
    assert remedy in caught.value.remedy


def test_refusals_leave_with_two_and_draw_nothing(capsys, write, tmp_path: Path) -> None:
    """Bad input, an ending that is no picture's, and a place that cannot be written: exit code 2, no file."""
    good, out = write(OWN), tmp_path / "own.svg"
    for path, picture, said in (
        (tmp_path / "none.yaml", out, "there is no such file"),
        (good, tmp_path / "own.jpeg", "no kind of picture"),
        (good, tmp_path / "none" / "own.svg", "cannot be written"),
    ):
        code, printed, error = run(capsys, str(path), "--out", str(picture))
        assert (code, printed) == (2, "")
        assert said in error
        assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == [good]
