"""The check of this machine, as a table or as JSON."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast_agent.preflight.measuring import CheckedPlaces
from holdfast_agent.preflight.node_check import check_node
from holdfast_checkpoint.store.locations import is_url
from holdfast_cli.settings.schema import RunSettings
from holdfast_cli.views.output import print_json
from holdfast_core.texts.nodes import OF_GPU, figure_text
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.message_json import to_json
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import CHECKS


def check_this_machine(settings: RunSettings, *, json: bool) -> None:
    """Check this machine without a run and print the result. Raises typer.Exit with code 1 if something failed."""
    wanted = [str(settings.directory), *([settings.checkpoint_directory] if settings.checkpoint_directory else [])]
    folders = tuple(_existing(Path(each)) for each in wanted if not is_url(each))
    places = CheckedPlaces(folders=folders, shm_directory=str(settings.shm_directory), address="127.0.0.1")
    check = asyncio.run(check_node(places))
    left_out = [f"{each} is no folder" for each in wanted if is_url(each)]
    check.unmeasured = "; ".join(filter(None, [check.unmeasured, *left_out]))
    if json:
        print_json(to_json(check))
    else:
        console = Console()
        console.print(check_table(check))
        if check.unmeasured:
            console.print(f"not measured: {check.unmeasured}", highlight=False, markup=False)
    if check.failures:
        raise typer.Exit(ExitCode.FAILED)


def _existing(folder: Path) -> str:
    """Return a folder, or the one in which a run would make it."""
    return str(next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir()))


def check_table(check: store.NodeCheck) -> Table:
    """Return a table with one row for each figure and each failure. What ran on a GPU is marked unproven."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check")
    table.add_column("result", justify="right")
    table.add_column("remark")
    for kind, result, remark in sorted(_rows(check)):
        style = "red" if result == "failed" else ""
        table.add_row(CHECKS[kind].name, result, remark, style=style)
    return table


def _rows(check: store.NodeCheck) -> Iterator[tuple[store.CheckKind, str, str]]:
    for figure in check.figures:
        remark = f"GPU {figure.device}, unproven" if figure.kind in OF_GPU else ""
        yield figure.kind, figure_text(figure), remark
    for failure in check.failures:
        yield failure.kind, "failed", failure.reason
