import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.commands.services.notify import test_channels as send_tests
from holdfast_cli.errors import CommandError, SettingsError
from holdfast_cli.flags.watch_flags import NotifyTestFlags
from holdfast_proto import keys
from holdfast_proto.v1.store_pb2 import RunSpec, WebhookChannel
from tests.cli.conftest import holdfast, run_record
from tests.support.receiver import Answer, Receiver, receiver
from tests.support.run_keys import sealed_spec, write_key
from tests.support.store_server import StoreServer, store_process, store_server

__all__ = ["store_process", "store_server"]


@pytest.fixture
def service() -> Iterator[Receiver]:
    with receiver() as it:
        yield it


def settings(folder: Path, service: Receiver) -> Path:
    """Write a file with four channels and a heartbeat, all on one service."""
    (folder / "url").write_text(f"{service.url}/secret")
    (folder / "url").chmod(0o600)
    file = folder / "holdfast.toml"
    file.write_text(f"""
[run]
name = "llama"
[notify]
heartbeat_url_file = "url"
[notify.webhook]
url = "{service.url}/hook"
[notify.slack]
url_file = "url"
[notify.discord]
url_file = "url"
[notify.command]
argv = ["/bin/sh", "-c", "exit 3"]
""")
    return file


def own_file(folder: Path, service: Receiver) -> Path:
    """Write a file with one channel."""
    (folder / "own.toml").write_text(f'[notify.webhook]\nurl = "{service.url}"\n')
    return folder / "own.toml"


def recorded(folder: Path, **fields: Any) -> Path:
    """Write the record of the run "llama", and return the folder that has it."""
    (folder / "llama").mkdir()
    run_record(folder / "llama", run="llama", **fields).save()
    return folder / "llama"


def test_every_channel_gets_a_message_and_each_result_is_said(
    tmp_path: Path, service: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match="1 of 5 could not be reached") as error:
        send_tests(NotifyTestFlags(config=settings(tmp_path, service)))
    assert error.value.exit_code == 1
    assert capsys.readouterr().out.splitlines() == [
        "webhook: sent",
        "slack: sent",
        "discord: sent",
        "command: failed: /bin/sh exited with code 3",
        "heartbeat: sent",
    ]
    assert [one.path for one in service.received] == ["/hook", "/secret", "/secret", "/secret"]
    [notice] = service.received[0].json["notices"]
    assert (notice["event"], notice["status"], service.received[0].json["run"]) == ("test", "test", "llama")


def test_a_channel_that_fails_is_told_apart_without_its_secret(
    tmp_path: Path, service: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answers = [Answer(), Answer(404), Answer(302, {"Location": "http://elsewhere.invalid/"}), Answer(500)]
    file = settings(tmp_path, service)
    (tmp_path / "url").chmod(0o644)
    with pytest.raises(CommandError, match="4 of 5"):
        send_tests(NotifyTestFlags(config=file))
    out = capsys.readouterr().out
    assert "slack: failed: it answers 404" in out
    assert "discord: failed: it answers 302: redirects are not followed" in out
    assert "heartbeat: failed: the service answers 500" in out
    assert out.count("warning: ") == 1
    assert "chmod 600" in out and "/secret" not in out


def test_all_that_answer_end_the_command_with_success(tmp_path: Path, service: Receiver) -> None:
    done = holdfast("notify", "test", "--config", own_file(tmp_path, service))
    assert (done.exit_code, done.output) == (0, "webhook: sent\n")


def test_a_file_that_names_no_channel_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.touch()
    with pytest.raises(SettingsError, match="names no channel"):
        send_tests(NotifyTestFlags(config=file))


def test_a_run_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no run nobody"):
        send_tests(NotifyTestFlags(run="nobody", directory=tmp_path))


def test_a_run_that_has_ended_needs_the_file_with_its_channels(
    tmp_path: Path, service: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, store_url=f"unix://{tmp_path}/gone.sock", outcome="finished")
    with pytest.raises(CommandError) as caught:
        send_tests(NotifyTestFlags(run="llama", directory=tmp_path))
    assert str(caught.value) == (
        "the channels of run llama are not known: it has ended, and its Redis keeps them no longer: "
        "name the file that has them with --config"
    )
    file = own_file(tmp_path, service)
    send_tests(NotifyTestFlags(run="llama", directory=tmp_path, config=file))
    assert capsys.readouterr().out == "webhook: sent\n"
    assert service.received[0].json["run"] == "llama"


def test_config_show_prints_a_file_with_the_same_channels(
    tmp_path: Path, service: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = settings(tmp_path, service)
    monkeypatch.chdir(tmp_path)
    shown = holdfast("config", "show")
    assert shown.exit_code == 0, shown.output
    file.write_text(shown.output)
    found = json.loads(holdfast("config", "show", "--json").output)
    assert found["notify.command.command.argv"]["value"] == ["/bin/sh", "-c", "exit 3"]
    assert found["notify.slack.slack.url_file"]["value"] == "url"
    assert holdfast("config", "check").exit_code == 0


def test_the_channels_of_a_run_are_those_in_its_redis(
    tmp_path: Path, service: Receiver, store_server: StoreServer, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, store_url=store_server.url)
    with pytest.raises(CommandError, match="the channels of run llama are not known: "):
        send_tests(NotifyTestFlags(run="llama", directory=tmp_path))
    write_key(tmp_path / "llama", "llama")
    spec = RunSpec(run="llama")
    spec.notify.channels.add(name="hook", webhook=WebhookChannel(url=service.url))
    with store_server.client() as client:
        client.set(keys.spec("llama"), sealed_spec(spec))
    send_tests(NotifyTestFlags(run="llama", directory=tmp_path))
    assert capsys.readouterr().out == "hook: sent\n"
    assert service.received[0].json["run"] == "llama"


def test_a_record_that_another_user_can_have_written_is_not_trusted(tmp_path: Path) -> None:
    (recorded(tmp_path) / "run.json").chmod(0o666)
    with pytest.raises(CommandError, match="can be written by others"):
        send_tests(NotifyTestFlags(run="llama", directory=tmp_path))
