"""Write what a packaged profile says of its errors, from measurements; everything else of the file stays.

    python -m benchmarks.fit_spread GENERATION [--kernels TABLE.parquet ...] [--trace TRACE.json.gz --node NODE]
                                    [--steps TABLE.yaml ... --constants N]

``--kernels``: measured kernels, of which the half that profiles are not fitted to counts. ``--trace``: a profile of the
PyTorch profiler with shapes, for memory-bound kernels, recorded on NODE. The network is held against the published
collectives that come with meshtwin. ``--steps``: published steps to which N of the profile's constants were fitted.
Families that none of these speaks of keep what they have.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import yaml

from costmodels.calibration.document import spread_entry
from costmodels.calibration.spread import spread_of
from costmodels.hardware import load_node
from costmodels.profile import SPREAD_SECTION, STEP, load_profile, packaged_entry
from costmodels.spread import NETWORK
from scenarios.calibration.calibration import SPREAD_SOURCE
from scenarios.calibration.spread_fit import kernel_spreads, network_calls, pointwise_spread, step_spread

PROFILES = Path(__file__).parents[1] / "costmodels" / "profiles"
NETWORK_SOURCE = (
    "log(measured/predicted) of {rows} collectives and messages of traces/published, most of which the section network "
    "was fitted to; kinds and groups of a publication count alike"
)
TRACE_SOURCE = (
    "log(measured/predicted) of memory-bound kernels in {trace}, recorded on a device of {node}, about one fraction of "
    "the bandwidth for all; operators count alike"
)
STEP_SOURCE = "What {tables} are off (root mean square; {constants} constants fitted) beside what the families explain"


def main() -> None:
    """Read the command line, estimate, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generation")
    parser.add_argument("--kernels", nargs="*", type=Path, default=[])
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--node", help="what the trace was recorded on, of the catalogue")
    parser.add_argument("--steps", nargs="*", type=Path, default=[])
    parser.add_argument("--constants", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.generation, families(arguments))
    if arguments.steps:  # beside the families as they are now
        load_profile.cache_clear()
        deviation = round(step_spread(arguments.steps, arguments.constants), 4)
        tables = ", ".join(path.stem for path in arguments.steps)
        source = STEP_SOURCE.format(tables=tables, constants=arguments.constants)
        write(arguments.generation, {STEP: {"source": source, "deviation": deviation}})


def families(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the measured families as the section has them."""
    fitted_on = load_node(packaged_entry(arguments.generation)["node"])
    kernels = kernel_spreads(fitted_on, arguments.kernels) if arguments.kernels else {}
    found = {family: spread_entry(spread, SPREAD_SOURCE) for family, spread in kernels.items()}
    calls = network_calls(arguments.generation)
    if calls:
        found[NETWORK] = spread_entry(spread_of(calls), NETWORK_SOURCE.format(rows=len(calls)))
    if arguments.trace:
        source = TRACE_SOURCE.format(trace=arguments.trace.name, node=arguments.node)
        found["elementwise"] = spread_entry(pointwise_spread(load_node(arguments.node), arguments.trace), source)
    return found


def write(generation: str, changed: dict[str, Any]) -> None:
    """Put changed families into the section of a profile's file."""
    path = PROFILES / f"{generation}.yaml"
    section = {SPREAD_SECTION: {**packaged_entry(generation)[SPREAD_SECTION], **changed}}
    text = yaml.safe_dump(section, sort_keys=False, width=120)
    before = path.read_text(encoding="utf-8")
    after = re.sub(rf"^{SPREAD_SECTION}:\n(?:[ ].*\n)*", lambda _: text, before, flags=re.MULTILINE)
    path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
