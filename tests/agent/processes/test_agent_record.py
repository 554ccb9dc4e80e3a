import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_agent.processes import agent_record
from holdfast_base.processes import AgentError
from holdfast_proto.v1.agent_record_pb2 import AgentRecord, RankRecord
from tests.support.coroutines import wait_until

RECORD = AgentRecord(
    run="run", node="node0", generation=3, fence=17, ranks=[RankRecord(rank=1, pid=42, start_ticks=99)]
)

HOLDER = """
import sys, time
from pathlib import Path
from holdfast_agent.processes import agent_record

lock = agent_record.lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_record_is_replaced_and_leaves_no_other_file(tmp_path: Path) -> None:
    agent_record.save(tmp_path / "record.pb", AgentRecord(run="before"))
    agent_record.save(tmp_path / "record.pb", RECORD)
    assert agent_record.load(tmp_path / "record.pb") == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["record.pb"]


def test_without_a_record_and_with_a_damaged_one_there_is_none(tmp_path: Path) -> None:
    assert agent_record.load(tmp_path / "record.pb") is None
    (tmp_path / "record.pb").write_bytes(RECORD.SerializeToString()[:-3])
    assert agent_record.load(tmp_path / "record.pb") is None


def test_a_second_agent_of_a_node_gets_a_message_that_says_what_to_change(tmp_path: Path) -> None:
    descriptor = agent_record.lock(tmp_path / "agent.lock")
    with pytest.raises(AgentError, match=r"agent\.lock: stop it, or .* --node or --directory") as caught:
        agent_record.lock(tmp_path / "agent.lock")
    assert "\n" not in str(caught.value)
    os.close(descriptor)
    os.close(agent_record.lock(tmp_path / "agent.lock"))


def test_the_lock_goes_with_the_agent_that_held_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(AgentError):
            agent_record.lock(path)
        holder.kill()
    wait_until(lambda: holder.poll() is not None, "the holder is gone")
    os.close(agent_record.lock(path))


def test_a_record_that_others_may_have_written_gets_no_process_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "record.pb"
    old = os.umask(0)
    try:
        agent_record.save(path, RECORD)
    finally:
        os.umask(old)
    assert agent_record.load(path) == RECORD
    path.chmod(0o606)
    assert agent_record.load(path) is None
    assert "can be written by others" in caplog.text
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert agent_record.load(path) is None


def test_a_record_is_not_read_if_it_is_larger_than_any(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "record.pb"
    path.touch(0o600)
    os.truncate(path, 1 << 30)
    assert agent_record.load(path) is None
    assert "more than" in caplog.text


def test_a_record_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    assert agent_record.save(tmp_path / "record.pb", RECORD)
    assert not agent_record.save(tmp_path / "no such folder" / "record.pb", RECORD)


def test_a_record_that_the_disk_does_not_give_now_is_no_reason_to_go_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.pb"
    agent_record.save(path, RECORD)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(agent_record, "read_regular", fail)
    with pytest.raises(AgentError, match=r"record.pb: Input/output error: .* cannot be read now"):
        agent_record.load(path)
