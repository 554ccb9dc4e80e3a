"""Replicas and their snapshots: what the settings of a run and of a node become."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.commands.observe import _without_state
from holdfast_cli.errors import SettingsError
from holdfast_cli.flags.start_flags import ObserveFlags
from holdfast_cli.local_run.command_lines import agent_command
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.local_run.run_spec import run_spec
from holdfast_cli.run_folder.paths import RunPaths
from holdfast_cli.settings.schema import ModeName
from tests.cli.conftest import holdfast

PATHS = RunPaths(Path("/d"), Path("/r"), Path("/m"), "n")


def options(**settings: Any) -> LocalRunOptions:
    return LocalRunOptions(run="r", command=("x",), **settings)


@pytest.mark.parametrize(
    ("nodes", "settings", "spec"),
    [
        (2, {}, (10.0, 250e6)),
        (2, {"replicate_every_s": 0.0, "replica_mb_per_s": 0.5}, (0.0, 500_000.0)),
        (1, {}, (0.0, 250e6)),
    ],
    ids=["default", "none", "one node"],
)
def test_several_nodes_make_replica_snapshots_and_one_node_makes_none(
    nodes: int, settings: dict[str, float], spec: tuple[float, float]
) -> None:
    made = run_spec(options(**settings), nodes=nodes, checkpoints="c", created_unix_s=1.0, instance="i")
    assert (made.replicate_every_s, made.replica_bytes_per_s) == spec


def test_a_run_whose_state_is_not_saved_makes_none_and_refuses_the_flag() -> None:
    assert _without_state(ObserveFlags(given={}))["replicate_every_s"] == 0.0
    with pytest.raises(SettingsError, match="--replicate-every has no effect without --restore"):
        _without_state(ObserveFlags(given={"replicate_every_s": 20.0}))


def test_the_agent_of_a_node_gets_its_failure_domain_and_its_address() -> None:
    words = agent_command(PATHS, options(topology="rack-7", replica_address="[fd00::7]:9200"), [])
    given = dict(pairwise(words))
    assert (given["--topology"], given["--replica-address"]) == ("rack-7", "[fd00::7]:9200")
    assert not {"--topology", "--replica-address"} & set(agent_command(PATHS, options(), []))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"topology": "rack 7"}, "--topology 'rack 7': use 1 to 63 letters"),
        ({"replica_address": "http://node:1"}, "--replica-address: 'http://node:1' is no address: use HOST, HOST:PORT"),
    ],
)
def test_a_node_with_a_wrong_place_is_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        options(**settings)
    assert str(refused.value).startswith(problem)
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
    needed = ("--run", "r", "--directory", "/d", "--runtime-directory", "/r", "--redis", "redis://localhost:1")
    result = holdfast("agent", *needed, *flags)
    assert result.exit_code == 78
    assert problem in result.output


@pytest.mark.parametrize(
    ("settings", "spec"),
    [
        ({}, (0, 0.0)),
        ({"resize_after_s": 5.0}, (0, 0.0)),
        ({"min_replicas": 2}, (2, 60.0)),
        ({"min_replicas": 2, "resize_after_s": 0.0}, (2, 0.0)),
    ],
)
def test_a_run_waits_for_its_nodes_unless_it_says_how_many_replicas_are_enough(
    settings: dict[str, Any], spec: tuple[int, float]
) -> None:
    made = run_spec(options(nodes=3, **settings), nodes=3, checkpoints="c", created_unix_s=1.0, instance="i")
    assert (made.min_replicas, made.resize_after_s) == spec


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"nodes": 1}, "--min-replicas 2 with --nodes 1: no node can be missing"),
        ({"nodes": 2, "ranks": 1}, "--min-replicas 2 leaves none out: 2 ranks are 2 replicas at most"),
        ({"snapshot_every": 0, "checkpoint_every": 0}, "--min-replicas 2 with --snapshot-every 0: there are no states"),
        ({"mode": ModeName.OBSERVE}, "--min-replicas 2 with --mode observe, which starts no rank again"),
    ],
)
def test_a_run_that_cannot_continue_with_fewer_nodes_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        options(**{"nodes": 3, "min_replicas": 2, **settings})
    assert str(refused.value).startswith(problem)
