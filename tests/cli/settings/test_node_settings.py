"""Nodes that should not train: what the settings of a run become."""

from typing import Any

import pytest

from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.local_run.run_spec import run_spec
from holdfast_cli.settings.schema import ModeName, QuarantineName


def options(**settings: Any) -> LocalRunOptions:
    return LocalRunOptions(run="r", command=("x",), **settings)


@pytest.mark.parametrize(
    ("settings", "spec"),
    [
        ({}, (False, False)),
        ({"preflight": True}, (True, False)),
        ({"quarantine": QuarantineName.ACT}, (False, True)),
    ],
)
def test_nodes_are_neither_checked_nor_left_out_unless_the_run_says_so(
    settings: dict[str, Any], spec: tuple[bool, bool]
) -> None:
    made = run_spec(options(nodes=3, **settings), nodes=3, checkpoints="c", created_unix_s=1.0, instance="i")
    assert (made.checks_nodes, made.quarantines) == spec


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"nodes": 1}, "--quarantine act with --nodes 1: no other node can take the place of one"),
        ({"mode": ModeName.OBSERVE}, "--quarantine act with --mode observe, which starts no rank"),
    ],
)
def test_a_run_that_cannot_leave_a_node_out_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        options(**{"nodes": 3, "quarantine": QuarantineName.ACT, **settings})
    assert str(refused.value).startswith(problem)
