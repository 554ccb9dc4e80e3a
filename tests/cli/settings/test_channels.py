"""The section [notify]: what it takes, and what is refused with which line."""

from pathlib import Path

import pytest

from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.notify_spec import check_files
from holdfast_cli.local_run.run_options import local_run_options
from holdfast_cli.local_run.run_spec import run_spec
from holdfast_cli.settings.file import parse_file
from holdfast_cli.settings.resolving import Resolved, merge
from holdfast_proto.v1.store_pb2 import RunSpec

WHOLE = """
[notify]
on = ["failure", "end"]
ignore = ["straggler"]
min_interval_s = 30
console_url = "https://console.example/holdfast"
heartbeat_url_file = "heartbeat.url"
[[notify.slack]]
url_file = "slack.url"
[[notify.slack]]
url_file = "/etc/slack.url"
[notify.webhook]
name = "pager"
url = "https://pager.example/hook"
bearer_token_file = "token"
[notify.command]
argv = ["/bin/true", "--now"]
[notify.email]
host = "smtp.example.com"
user = "me"
password_file = "password"
from = "a@example.com"
to = ["b@example.com"]
"""


def resolved(text: str, folder: Path = Path("/conf")) -> Resolved:
    return merge("config", {}, parse_file(text, folder / "holdfast.toml"))


def spec_of(text: str) -> RunSpec:
    options = local_run_options(resolved(text), run="r", command=("x",))
    return run_spec(options, nodes=1, checkpoints="c", created_unix_s=1.0, instance="i")


EMAIL = '[notify.email]\nhost = "h"\n'
LOGIN = 'from = "a@b"\nto = ["b@c"]\nuser = "u"\n'


def test_a_whole_section_becomes_a_part_of_the_spec() -> None:
    notify = spec_of(WHOLE).notify
    assert [channel.name for channel in notify.channels] == ["slack", "slack-2", "pager", "command", "email"]
    slack, other, pager, command, email = notify.channels
    assert slack.slack.path == "/conf/slack.url"
    assert other.slack.path == "/etc/slack.url"
    assert pager.webhook.bearer_token_file == "/conf/token"
    assert (list(command.command.argv), command.command.timeout_s) == (["/bin/true", "--now"], 10.0)
    assert (email.email.port, email.email.security, email.email.sender) == (587, "starttls", "a@example.com")
    assert (list(notify.on), list(notify.ignored), notify.min_interval_s) == (["failure", "end"], ["straggler"], 30.0)
    assert (notify.heartbeat.url_file, notify.heartbeat.every_s) == ("/conf/heartbeat.url", 60.0)


def test_without_a_channel_nobody_is_notified() -> None:
    assert not spec_of("[notify]\nmin_interval_s = 5\n").HasField("notify")


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ('[notify]\nsound = "on"', ":2", "notify.sound is not a key"),
        ('[notify]\non = ["blips"]', ":2", 'notify.on holds "blips": use a list of incident, recovery, failure, end'),
        ("[notify]\non = []", ":2", "use a list of incident"),
        ("[notify]\n\n[notify.slac]\n", ":3", "[notify.slac] is no channel: the nearest is [notify.slack]"),
        ('[notify.slack]\nurl_file = "a"\nurl = "b"', ":3", "notify.slack.url is not a key"),
        ("[notify.slack]\nurl_file = 3", ":2", "notify.slack.url_file = 3: use a string"),
        ("[notify]\nslack = {url_file = 3}", ":2", "notify.slack.url_file = 3: use a string"),
        ("[run]\nranks = 2\n[notify.slack]\n", ":3", "[notify.slack] lacks url_file"),
        ("[notify]\nslack = 3", ":2", "notify.slack is not a key"),
        ("[notify.webhook]\n", ":1", "set url or url_file, and not both"),
        ('[notify.webhook]\nurl = "https://me@a/"', ":1", "it has a user or a password"),
        ('[notify.webhook]\nurl = "https://me:pw@a/"', ":2", "name that by a key that ends in _file"),
        ('[notify.webhook]\nurl = "http://a/"\nbearer_token_file = "t"', ":1", "can read the token of bearer_token_"),
        ('[notify.webhook]\nurl = "ftp://a"', ":1", "url: use https://"),
        ('[notify.command]\nargv = "page me"', ":2", 'a list of strings, such as ["/opt/page-me"]'),
        ('[notify.command]\nargv = ["x"]\ntimeout_s = 0', ":3", "use a number from 0.1 to 300"),
        (EMAIL + 'from = "a"\nto = ["b@c"]', ":1", "'a' is no address"),
        (EMAIL + 'from = "a@b\\nBcc: x@y"\nto = ["b@c"]', ":1", "is no address"),
        (EMAIL + 'from = "a@b"\nto = ["b@c"]\nsecurity = "ssl"', ":1", "use one of starttls, tls"),
        (EMAIL + LOGIN, ":1", "set user and password_file"),
        (EMAIL + LOGIN + 'password_file = "p"\nsecurity = "none"', ":1", "a login needs security"),
        ('[[notify.slack]]\nurl_file = "a"\n[[notify.slack]]\nurl_fil = "b"', ":4", "the nearest is url_file"),
        ('[notify.slack]\nname = "heartbeat"\nurl_file = "a"', ":1", "and not heartbeat"),
        ('[[notify.slack]]\nname = "x"\nurl_file = "a"\n[notify.discord]\nname = "x"\nurl_file = "a"', ":1", "two"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text: str, line: str, part: str) -> None:
    with pytest.raises(SettingsError) as error:
        resolved(text)
    assert part in str(error.value)
    assert str(error.value).startswith(f"/conf/holdfast.toml{line}: ")
    assert "pw@" not in str(error.value)


@pytest.mark.parametrize("url", ["https://a/", "http://127.0.0.1:9/", "http://[::1]/", "http://localhost:9/x"])
def test_a_token_may_go_to_this_machine_or_encrypted(url: str) -> None:
    text = f'[notify.webhook]\nurl = "{url}"\nbearer_token_file = "t"'
    assert [channel.kind for channel in resolved(text).settings.notify_channels] == ["webhook"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('ignore = ["dead_rnk"]', "notify.ignore holds 'dead_rnk': use one of dead_rank"),
        ('console_url = "https://a/#token=x"', "notify.console_url: it ends in a query or a fragment"),
        ('console_url = "a"', "notify.console_url: use https://"),
        ('heartbeat_fail_url_file = "a"', "has no effect without notify.heartbeat_url_file"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_their_line(text: str, part: str) -> None:
    with pytest.raises(SettingsError) as error:
        spec_of(f"[notify]\n{text}\n")
    assert part in str(error.value) and "/conf/holdfast.toml:2" in str(error.value)


def test_files_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    def problem(text: str) -> str:
        with pytest.raises(SettingsError) as error:
            check_files(resolved(text, tmp_path))
        return str(error.value)

    slack = '[notify.slack]\nurl_file = "url"\n'
    missing = f"[notify.slack]: url_file: {tmp_path}/url: No such file or directory"
    assert problem(slack) == f"{tmp_path}/holdfast.toml:1: {missing}"
    (tmp_path / "url").write_text("hooks.slack.com/secret")
    assert "the URL in it cannot be used: use https://" in problem(slack) and "secret" not in problem(slack)
    (tmp_path / "url").write_text("https://hooks.slack.com/secret")
    check_files(resolved(slack, tmp_path))
    assert "argv: /nowhere/page is no program" in problem('[notify.command]\nargv = ["/nowhere/page"]\n')
    assert "notify.heartbeat_url_file" in problem('[notify]\nheartbeat_url_file = "none"\n')
