"""What a node says while ranks of other nodes have not said hello: no verdict is possible before."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.automatic import rank_environment
from holdfast_cli.local_run.launcher_watch import observed_node
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.observed_nodes import node_observation
from holdfast_cli.observed_nodes.node_observation import NodeObservation, silence_line
from holdfast_cli.settings.schema import ModeName
from tests.support.local_runs import wait_for
from tests.support.store_server import StoreServer

RANK = """
import time, holdfast_hooks
with holdfast_hooks.attach() as hooks:
    for step in hooks.steps(until=10**6):
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("observing", "silent", "end"),
    [
        (["a"], [], "1 of 2 nodes run `holdfast observe`: a"),
        (["a", "b"], ["b"], "no rank of b has said hello: does the script call attach() there?"),
        (["a", "b"], [], "some ranks have not said hello: does the script call attach() in every rank?"),
    ],
)
def test_the_line_says_what_is_missing(observing: list[str], silent: list[str], end: str) -> None:
    assert silence_line(2, observing, silent) == f"no verdict is possible yet: 60 s after the first ranks, {end}"


@pytest.mark.system
def test_a_node_that_is_alone_says_once_that_no_verdict_is_possible_and_its_ranks_train(
    tmp_path: Path, store_server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_observation, "SILENCE_S", 1.0)
    settings: dict[str, Any] = {"ranks": 0, "nodes": 2, "checkpoint_every": 0, "snapshot_every": 0}
    settings |= {"directory": tmp_path, "redis_url": store_server.url}
    options = LocalRunOptions(run="alone", mode=ModeName.OBSERVE, **settings)
    with Interruption() as interruption, NodeObservation(options, "a", interruption, say=print) as here:
        ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        node = observed_node(options, "a", here.paths.directory, here.paths.runtime)
        environment = {
            **os.environ,
            **ranks,
            **rank_environment(node),
        }
        rank = subprocess.Popen([sys.executable, "-c", RANK], env=environment)
        try:
            wait_for(lambda: any("no verdict is possible yet" in note for note in here.notes()), "the line")
            status = wait_for(here.look, "the run")
            assert (status.generation, status.incidents) == (0, 0)
            assert rank.poll() is None
        finally:
            rank.kill()
            rank.wait()
    lines = [note for note in here.notes() if "no verdict" in note]
    assert lines == ["no verdict is possible yet: 1 s after the first ranks, 1 of 2 nodes run `holdfast observe`: a"]
