"""The files of a search: plan.json, best.yaml and report.html, all of them or none."""

import json
from pathlib import Path

import yaml

from scenarios.planning.page import plan_blocks
from scenarios.planning.search import Found
from scenarios.reading.documents.named_file import written_elsewhere
from scenarios.report.rendering.html_page import write_page
from scenarios.results.files import all_or_none
from scenarios.results.folder import PAGE


def write_plan(found: Found, out: Path) -> None:
    """Write the files into ``out``. Identical searches give identical bytes."""
    with all_or_none(out) as staging:
        text = json.dumps(found.as_json(), indent=2) + "\n"
        (staging / "plan.json").write_text(text, encoding="utf-8", newline="\n")
        (staging / "best.yaml").write_text(best_text(found, out), encoding="utf-8", newline="\n")
        write_page(staging / PAGE, plan_blocks(found.summary))


def best_text(found: Found, folder: Path) -> str:
    """Return the scenario of the best plan as YAML, for a file in ``folder``: it names the same files from there."""
    summary = found.summary
    head = f"# The best of {summary.num_strategies:,} strategies by {summary.objective}, found by simulate plan.\n"
    return head + yaml.safe_dump(written_elsewhere(found.best, folder), sort_keys=False, width=120, allow_unicode=True)
