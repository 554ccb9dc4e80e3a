import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_core.nodes.node_faults import NODES_KEPT
from holdfast_daemon.incidents.node_file import NodeFile, changed_unix_s, load
from holdfast_proto import run_files
from holdfast_proto.v1.store_pb2 import VERDICT_KIND_LOST_NODE, NodeFault, NodeHistory
from tests.support.coroutines import until
from tests.support.fake_agent import FakeAgent
from tests.support.memory_store import MemoryStore
from tests.support.shells import daemon, publish_spec, stored_record
from tests.support.virtual_time import on_virtual_time


def history(node: str = "a", unix_s: float = 1.0, reason: str = "no space left") -> NodeHistory:
    return NodeHistory(node=node, quarantine=reason, since_unix_s=unix_s)


def written(folder: Path) -> list[NodeHistory]:
    return load(run_files.node_histories(folder))


def kept(folder: Path, act: Callable[[NodeFile], object]) -> list[NodeHistory]:
    """Return what the next daemon finds after one has done something."""
    file = NodeFile(folder)
    act(file)
    file.close()
    return written(folder)


@pytest.mark.parametrize(
    "newest",
    [
        history(unix_s=9.0),
        NodeHistory(node="a", since_unix_s=1.0, released_unix_s=9.0),
        NodeHistory(node="a", faults=[NodeFault(unix_s=9.0, kind=VERDICT_KIND_LOST_NODE, run="r", incident="i")]),
    ],
)
def test_of_two_histories_of_one_node_the_newer_is_kept(tmp_path: Path, newest: NodeHistory) -> None:
    assert changed_unix_s(newest) == 9.0
    assert kept(tmp_path, lambda file: file.see("r", [history(), history("b")])) == [history(), history("b")]
    assert kept(tmp_path, lambda file: file.see("r", [newest])) == [history("b"), newest]
    assert kept(tmp_path, lambda file: file.see("r", [history()])) == [history("b"), newest]
    assert run_files.node_histories(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_quarantine_that_a_check_has_ended_is_forgotten(tmp_path: Path) -> None:
    def end(file: NodeFile) -> None:
        file.see("next", [one for one in file.begin("next") if one.node != "a"])

    kept(tmp_path, lambda file: file.see("r", [history("a"), history("b")]))
    assert kept(tmp_path, end) == [history("b")]


def test_a_run_does_not_end_what_another_run_has_found_since(tmp_path: Path) -> None:
    def end(file: NodeFile) -> None:
        file.see("r", [history()])
        file.see("another", [history(unix_s=9.0)])
        file.see("r", [])

    assert kept(tmp_path, end) == [history(unix_s=9.0)]


def test_the_file_keeps_only_so_many_nodes(tmp_path: Path) -> None:
    many = [history(f"n{number}", float(number)) for number in range(NODES_KEPT + 5)]
    assert kept(tmp_path, lambda file: file.see("r", many)) == many[5:]


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '{"nodes": [{"node": 1}]}', '{"nodes": [{}]}', '{"nodes": [{"node": "a\\u001b"}]}', "[" * 10**6],
)
def test_a_damaged_file_is_one_line_in_the_log_and_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    run_files.node_histories(tmp_path).write_text(text)
    with caplog.at_level(logging.WARNING):
        assert list(NodeFile(tmp_path).begin("r")) == []
    assert len(caplog.records) == 1 and "cannot be used" in caplog.text
    assert kept(tmp_path, lambda file: file.see("r", [history()])) == [history()]


@on_virtual_time
async def test_a_new_run_begins_with_what_is_known_and_a_change_of_it_is_written(folder: Path) -> None:
    kept(folder, lambda file: file.see("r", [history("z")]))
    memory = MemoryStore()
    publish_spec(memory)
    async with daemon(folder, memory) as it, FakeAgent(memory) as agent:
        await until(lambda: agent.state.ranks, "the ranks have started")
        record = stored_record(memory)
        assert record is not None and [(one.node, one.quarantine) for one in record.node_histories] == [("z", "")]
        await it.shell.requests.release("z")
        await until(lambda: written(folder) and written(folder)[0].released_unix_s > 0.0, "the release is written")
    assert not written(folder)[0].quarantine
