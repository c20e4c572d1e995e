"""Fuzz the readers for as long as wanted: ``python -m tests.fuzz --seconds 3600``."""

import faulthandler
import random
import resource
import tempfile
import time
from pathlib import Path

import click

from tests.fuzz.mutate import to_text
from tests.fuzz.target import attempt, case_of
from tests.fuzz.targets import TARGETS


@click.command()
@click.option("--seconds", default=600, show_default=True, help="How long.")
@click.option("--only", multiple=True, type=click.Choice([t.name for t in TARGETS]), help="These readers alone.")
@click.option("--start", type=int, help="Where the inputs start; default another place each time.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("out/fuzz"), show_default=True, help="For what is found."
)
@click.option("--memory", default=8, show_default=True, help="GiB of address space.")
def fuzz(seconds: int, only: tuple[str, ...], start: int | None, out: Path, memory: int) -> None:
    """Give random inputs to the readers; keep one of each kind that a reader does not take as it should."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (memory << 30, memory << 30))
    start = random.SystemRandom().randrange(1 << 30) if start is None else start
    targets = [target for target in TARGETS if not only or target.name in only]
    seeds = {target.name: target.seeds() for target in targets}
    counts, marks, end = dict.fromkeys(seeds, 0), dict[str, int](), time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        while time.monotonic() < end:
            for target in targets:
                begin = time.process_time()
                while time.process_time() < begin + 2 and time.monotonic() < end:
                    number = counts[target.name]
                    counts[target.name] += 1
                    case = case_of(target, seeds[target.name], number, start)
                    (out / "last.json").write_text(to_text(case))
                    finding = attempt(target, case, Path(scratch) / "case")
                    if finding is None:
                        continue
                    mark = f"{target.name}: {finding.mark}"
                    marks[mark] = marks.get(mark, 0) + 1
                    if marks[mark] == 1:
                        name = f"{target.name}-{start}-{number}"
                        (out / f"{name}.json").write_text(to_text(case))
                        (out / f"{name}.txt").write_text(finding.words)
                        click.echo(f"{mark}\n    {name}", err=True)
    click.echo(f"start {start}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    for mark, count in sorted(marks.items()):
        click.echo(f"{count:6,} x {mark}")
    raise SystemExit(bool(marks))


if __name__ == "__main__":
    fuzz()
