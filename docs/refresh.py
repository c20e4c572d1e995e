"""Draw the README's picture, and bring what is generated in it and in the pages of docs up to date: ``make docs``."""

import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from rich.console import Console

from scenarios.console.blocks import print_blocks
from scenarios.report.combinations import combination_lines
from scenarios.report.pictures.pipeline_figure import write_pipeline_figure
from scenarios.summaries.measured.validation import Validation
from scenarios.validation import published
from scenarios.validation.accuracy import markdown_lines, verdict_lines
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.advising.advise import advise
from scenarios.workloads.steps.running import simulate

HERE = Path(__file__).parent
SCENARIO_PAGE = HERE / "scenario.md"
README = HERE.parent / "README.md"
ACCURACY = HERE / "accuracy.md"
SCENARIOS = HERE.parent / "scenarios" / "library"


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
    found = simulate(scenario)
    console = Console(file=out, width=120)
    print_blocks(found.blocks(drawn=False), console)
    console.print()
    print_blocks(found.with_advice(advise(found, "quick")).closing(), console)
    lines = [line.rstrip() for line in out.getvalue().splitlines() if not line.startswith("simulated ")]
    return "\n".join(f"    {line}".rstrip() for line in lines)


def step_lines(accuracy: Validation) -> Iterator[str]:
    """Yield the README's table of tables: those of whole steps and of memory, not of single collectives."""
    steps = tuple(table for table in accuracy.tables if table.prediction != "collective_time_s")
    return verdict_lines(Validation(tables=steps))


def combinations_block() -> str:
    """Return what goes with what, for docs/scenario.md."""
    return "\n".join(combination_lines())


def replaced(text: str, name: str, block: str) -> str:
    """Return a text with what stands between a block's marks replaced. Raises ValueError where there are none."""
    marks = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end of {name} -->)", re.DOTALL)
    if len(marks.findall(text)) != 1:
        message = f"the page must hold the marks of {name} once"
        raise ValueError(message)
    return marks.sub(lambda found: f"{found[1]}\n{block}\n{found[2]}", text)


if __name__ == "__main__":
    draw_pipeline(HERE / "pipeline.png")
    readme = replaced(README.read_text(encoding="utf-8"), "quickstart", quickstart_block())
    accuracy = published.run()
    README.write_text(replaced(readme, "accuracy", "\n".join(step_lines(accuracy))), encoding="utf-8")
    page = ACCURACY.read_text(encoding="utf-8")
    ACCURACY.write_text(replaced(page, "accuracy", "\n".join(markdown_lines(accuracy))), encoding="utf-8")
    page = SCENARIO_PAGE.read_text(encoding="utf-8")
    SCENARIO_PAGE.write_text(replaced(page, "combinations", combinations_block()), encoding="utf-8")
