"""`pairloom info`: what was built and what is running."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pairloom._build_info import build_facts, cmake_folder
from pairloom.cli._app import app


@app.command(
    short_help="Print what was built and what is running.",
    epilog="Example:\n\n\b\n  PAIRLOOM_MAX_ISA=avx2 pairloom info",
)
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    cmake: Annotated[bool, typer.Option("--cmake", help="Print only the folder of the CMake package.")] = False,
) -> None:
    """Print what was built and what is running: version, instruction set, threads, torch, CUDA and why."""
    if cmake:
        typer.echo(cmake_folder())
        return
    facts = build_facts()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in readable(facts):
        table.add_row(name, value)
    Console().print(table)


def readable(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of the table, in the order in which a bug report is read."""
    cap = "none (PAIRLOOM_MAX_ISA is not set)"
    if facts["isa_cap"]:
        known = facts["isa_cap"] in facts["isa_compiled"]
        cap = f"PAIRLOOM_MAX_ISA={facts['isa_cap']}{'' if known else ' (no such level: ignored)'}"
    rows = [
        ("pairloom", f"{facts['version']} (git {facts['git_sha']})"),
        ("instruction set", facts["isa"]),
        ("  available here", ", ".join(facts["isa_available"])),
        ("  compiled in", ", ".join(facts["isa_compiled"])),
        ("  cap", cap),
        ("threads", "unknown without torch" if facts["threads"] is None else f"{facts['threads']} (torch's)"),
        ("torch built against", facts["torch_built"]),
        ("torch running", facts["torch_running"] or f"not importable: {facts['torch_error']}"),
        ("CUDA", f"{'yes' if facts['cuda'] else 'no'}: {facts['cuda_reason']}"),
        ("  kernels in use", facts["cuda_here"]),
        ("compiler", f"{facts['compiler']} {' '.join(facts['flags'])}"),
    ]
    if facts["sanitizer"]:
        rows.append(("sanitizer", facts["sanitizer"]))
    rows += [(f"{name} library", path) for name, path in facts["libraries"].items()]
    return [*rows, ("CMake package", facts["cmake"])]
