"""Draw the README's picture and put today's results into it: ``make docs``."""

import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from rich.console import Console

from scenarios import validation
from scenarios.console import print_summary
from scenarios.loader import load_scenario
from scenarios.report.figure import write_pipeline_figure
from scenarios.runner import simulate

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
SCENARIOS = HERE.parent / "scenarios"


def draw_pipeline(path: Path) -> None:
    """Draw the picture at the top of the README."""
    scenario = load_scenario(
        SCENARIOS / "gpt-175b-sequence-parallel-64.yaml",
        ["training.global_batch_size=16", "parallel.pipeline.virtual_stages=2"],
    )
    write_pipeline_figure(simulate(scenario).timeline, path)


def quickstart_block() -> str:
    """Return what the terminal shows for the first scenario, but for the line with the wall time."""
    scenario, out = load_scenario(SCENARIOS / "quickstart.yaml"), StringIO()
    print_summary(scenario, simulate(scenario).summary, Console(file=out, width=120))
    lines = [line.rstrip() for line in out.getvalue().splitlines() if not line.startswith("simulated ")]
    return "\n".join(f"    {line}".rstrip() for line in lines)


def accuracy_block() -> str:
    """Return what ``simulate validate`` finds: a table of tables, then every row, or group of rows where there are."""
    return "\n".join(_accuracy_lines())


def _accuracy_lines() -> Iterator[str]:
    tables = validation.run()["tables"]
    yield "| table | rows | mean absolute error | worst row | allowed (mean, worst) | |"
    yield "|---|---|---|---|---|---|"
    for t in tables:
        allowed = f"{t['thresholds']['mean']:.0%}, {t['thresholds']['worst']:.0%}"
        verdict = "passed" if t["passed"] else "FAILED"
        errors = f"{t['mean_absolute_error']:.1%} | {t['worst']:.1%}"
        yield f"| `{t['table']}` | {len(t['rows'])} | {errors} | {allowed} | {verdict} |"
    for t in tables:
        if t["groups"]:
            continue
        yield ""
        yield f"`{t['table']}`, {t['unit']} ({t['citation']}):"
        yield ""
        yield "| row | measured | predicted | error |"
        yield "|---|---|---|---|"
        for row in t["rows"]:
            yield f"| {row['name']} | {row['measured']:.4g} | {row['predicted']:.4g} | {row['error']:+.1%} |"
    yield ""
    yield "Collectives and messages (the mean is allowed to each kind):"
    yield ""
    yield "| table | kind | rows | mean absolute error | worst row |"
    yield "|---|---|---|---|---|"
    for t in tables:
        for group in t["groups"]:
            errors = f"{group['mean_absolute_error']:.1%} | {group['worst']:.1%}"
            yield f"| `{t['table']}` | {group['group']} | {group['rows']} | {errors} |"


def replaced(text: str, name: str, block: str) -> str:
    """Return a text with what stands between a block's marks replaced. Raises ValueError where there are none."""
    marks = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end of {name} -->)", re.DOTALL)
    if len(marks.findall(text)) != 1:
        message = f"README.md must hold the marks of {name} once"
        raise ValueError(message)
    return marks.sub(lambda found: f"{found[1]}\n{block}\n{found[2]}", text)


if __name__ == "__main__":
    draw_pipeline(HERE / "pipeline.png")
    readme = replaced(README.read_text(encoding="utf-8"), "quickstart", quickstart_block())
    README.write_text(replaced(readme, "accuracy", accuracy_block()), encoding="utf-8")
