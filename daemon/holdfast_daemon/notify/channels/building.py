"""Makes the channels that a run's spec names."""

from pathlib import Path

from holdfast_daemon.notify.channels.command import CommandProgram
from holdfast_daemon.notify.channels.mail import Mail
from holdfast_daemon.notify.channels.sending import Channel
from holdfast_daemon.notify.channels.webhooks import Discord, Slack, Webhook
from holdfast_proto.limits import LONGEST_S, NAME_CHARACTERS
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import HEARTBEAT

MOST_CHANNELS = 64


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


def check(notify: store.Notify) -> None:
    """Check what `holdfast run` and `publish` have checked: the store may hold anything. Raises ValueError."""
    names = [channel.name for channel in notify.channels]
    if len(names) > MOST_CHANNELS or len(set(names)) < len(names):
        raise ValueError(f"{len(names)} channels, of which {len(set(names))} have names of their own")
    if not all(0 < len(name) <= NAME_CHARACTERS and name.isprintable() and name != HEARTBEAT for name in names):
        raise ValueError("a channel has a name that cannot be a label")
    if not 0.0 <= notify.min_interval_s <= LONGEST_S:
        raise ValueError(f"min_interval_s is {notify.min_interval_s:g}")
    if notify.HasField("heartbeat") and not 1.0 <= notify.heartbeat.every_s <= LONGEST_S:
        raise ValueError(f"heartbeat.every_s is {notify.heartbeat.every_s:g}")
    for channel in notify.channels:
        if channel.HasField("command") and not (channel.command.argv and 0.0 < channel.command.timeout_s <= 3600.0):
            raise ValueError(f"channel {channel.name} has no program, or a time limit that is none")


def secret_files(notify: store.Notify) -> list[Path]:
    """Return all files that hold secrets."""
    paths = [notify.heartbeat.url_file, notify.heartbeat.fail_url_file]
    for one in notify.channels:
        paths += [one.webhook.url_file, one.webhook.bearer_token_file, one.slack.path, one.discord.path]
        paths.append(one.email.password_file)
    return [Path(path) for path in dict.fromkeys(paths) if path]


def _path(text: str) -> Path | None:
    return Path(text) if text else None
