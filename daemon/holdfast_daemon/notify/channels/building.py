"""Makes the channels that a run's spec names."""

from pathlib import Path

from holdfast_daemon.notify.channels.command import CommandProgram
from holdfast_daemon.notify.channels.mail import Mail
from holdfast_daemon.notify.channels.sending import Channel
from holdfast_daemon.notify.channels.webhooks import Discord, Slack, Webhook
from holdfast_proto.v1 import store_pb2 as store

HEARTBEAT = "heartbeat"
"""Name in metrics of the signs of life: no channel has it."""


def build(channel: store.NotifyChannel) -> Channel:
    """Return a channel. Raises ValueError for a kind that this version does not know."""
    match channel.WhichOneof("kind"):
        case "webhook":
            hook = channel.webhook
            return Webhook(hook.url, _path(hook.url_file), _path(hook.bearer_token_file))
        case "slack":
            return Slack(Path(channel.slack.path))
        case "discord":
            return Discord(Path(channel.discord.path))
        case "command":
            return CommandProgram(tuple(channel.command.argv), channel.command.timeout_s)
        case "email":
            mail = channel.email
            return Mail(
                host=mail.host,
                port=mail.port,
                security=mail.security,
                user=mail.user,
                password_file=_path(mail.password_file),
                sender=mail.sender,
                to=tuple(mail.to),
            )
    raise ValueError(f"channel {channel.name[:80]!r} is of a kind that this version does not know")


def secret_files(notify: store.Notify) -> list[Path]:
    """Return all files that hold secrets."""
    paths = [notify.heartbeat.url_file, notify.heartbeat.fail_url_file]
    for one in notify.channels:
        paths += [one.webhook.url_file, one.webhook.bearer_token_file, one.slack.path, one.discord.path]
        paths.append(one.email.password_file)
    return [Path(path) for path in dict.fromkeys(paths) if path]


def _path(text: str) -> Path | None:
    return Path(text) if text else None
