"""Draw the pictures of the README: ``make figures``."""

from pathlib import Path

from scenarios.loader import load_scenario
from scenarios.report.figure import write_pipeline_figure
from scenarios.runner import simulate

HERE = Path(__file__).parent
SCENARIOS = HERE.parent / "scenarios"

if __name__ == "__main__":
    scenario = load_scenario(
        SCENARIOS / "gpt-175b-sequence-parallel-64.yaml",
        ["training.global_batch_size=16", "parallel.pipeline.virtual_stages=2"],
    )
    write_pipeline_figure(simulate(scenario).timeline, HERE / "pipeline.png")
