"""``holdfast notify``: sends a test message to every channel."""

import socket
import time
from pathlib import Path

from google.protobuf.message import DecodeError
from redis import RedisError

from holdfast_base.files import exposure
from holdfast_base.http_post import PingError, ping
from holdfast_cli.errors import CommandError, SettingsError
from holdfast_cli.flags.watch_flags import NotifyTestFlags
from holdfast_cli.local_run.notify_spec import notify_message
from holdfast_cli.local_run.run_options import local_run_options
from holdfast_cli.local_run.store import connect
from holdfast_cli.run_folder.record import RunRecord, find_record
from holdfast_cli.settings.file import DEFAULT_FILE, read_file
from holdfast_cli.settings.resolving import merge
from holdfast_daemon.notify.channels.building import build, secret_files
from holdfast_daemon.notify.channels.sending import DeliveryDelayedError, DeliveryRefusedError
from holdfast_daemon.notify.grouping import message_of
from holdfast_daemon.notify.message_text import RunText
from holdfast_proto import keys
from holdfast_proto.run_files import run_key
from holdfast_proto.run_key import ForgedError, RunKeyError, RunKeyFile
from holdfast_proto.v1.store_pb2 import NotifyChannel, RunSpec
from holdfast_proto.vocabulary import HEARTBEAT


def test_channels(flags: NotifyTestFlags) -> None:
    """Send a test message to each channel, and say how that ended. Raises CommandError if one failed."""
    record = find_record(flags.directory, flags.run) if flags.run is not None else None
    if record is None:
        spec = _of_file(flags.config)
    elif flags.config is not None:
        spec = _of_file(flags.config, run=record.run)
    else:
        spec = _of_run(record)
    if not spec.HasField("notify"):
        raise SettingsError("[notify] names no channel: nobody is notified: see docs/notifications.md")
    for line in filter(None, map(exposure, secret_files(spec.notify))):
        print(f"warning: {line}")
    failed = 0
    for channel in spec.notify.channels:
        problem = _send(spec, channel)
        failed += bool(problem)
        print(f"{channel.name}: {problem or 'sent'}")
    if spec.notify.HasField("heartbeat"):
        problem = _ping(spec)
        failed += bool(problem)
        print(f"{HEARTBEAT}: {problem or 'sent'}")
    if failed:
        number = len(spec.notify.channels) + spec.notify.HasField("heartbeat")
        raise CommandError(f"{failed} of {number} could not be reached: the lines above say why")


def _send(spec: RunSpec, channel: NotifyChannel) -> str:
    """Return why the message could not be sent; "" if it was."""
    now = time.time()
    message = message_of(spec.run, socket.gethostname(), now, [RunText(spec).of_test(now)])
    try:
        build(channel).send(message)
    except (DeliveryRefusedError, DeliveryDelayedError) as error:
        return f"failed: {error}"
    return ""


def _ping(spec: RunSpec) -> str:
    try:
        ping(Path(spec.notify.heartbeat.url_file), f"test of run {spec.run}")
    except PingError as error:
        return f"failed: {error}"
    return ""


def _of_file(config: Path | None, *, run: str = "") -> RunSpec:
    """Return the channels of a file. ``run``: the run that the messages name; "": that of the file."""
    found = read_file(config)
    if found is None:
        raise SettingsError(f"{DEFAULT_FILE}: No such file or directory: name a file with --config")
    resolved = merge("config", {}, found)
    settings = resolved.settings
    options = local_run_options(resolved, run=run or settings.run or "test", command=settings.command or ("true",))
    return RunSpec(run=options.run, notify=notify_message(options))


def _of_run(record: RunRecord) -> RunSpec:
    """Return the channels that the daemon of a run has, or had if its Redis outlives it."""
    record.check_own()  # it names a Redis, whose spec names programs to run
    client = connect(record.store_url)
    try:
        data = client.get(keys.spec(record.run))
    except RedisError as error:
        raise CommandError(_not_in_redis(record, f"its Redis does not answer ({error})")) from None
    finally:
        client.close()
    if not isinstance(data, bytes):
        raise CommandError(_not_in_redis(record, "its Redis does not know it"))
    place = keys.spec(record.run)
    try:
        key = RunKeyFile(run_key(Path(record.directory), record.run), record.run).read()
        return RunSpec.FromString(key.seal.open(place, data).content)
    except (RunKeyError, ForgedError, DecodeError) as error:
        raise CommandError(
            f"the channels of run {record.run} are not known: {error}: name the file that has them with --config"
        ) from None


def _not_in_redis(record: RunRecord, reason: str) -> str:
    if record.outcome or not record.supervisor.is_alive():
        reason = "it has ended, and its Redis keeps them no longer"
    return f"the channels of run {record.run} are not known: {reason}: name the file that has them with --config"
