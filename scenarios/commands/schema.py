"""``simulate schema``: the JSON Schema of scenario files."""

import json

import click

from scenarios.workloads.registry import json_schema


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of scenario files; editors complete and check with it."""
    click.echo(json.dumps(json_schema(), indent=2))
