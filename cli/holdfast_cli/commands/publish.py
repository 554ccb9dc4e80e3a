"""``holdfast publish``: describes a run over several nodes; others start its agents and its daemon."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from redis import RedisError

from holdfast_cli.checkpoints.location import primary_location
from holdfast_cli.errors import CommandError
from holdfast_cli.flags.start_flags import PublishFlags
from holdfast_cli.local_run.run_options import local_run_options
from holdfast_cli.local_run.run_spec import run_spec
from holdfast_cli.local_run.store import connect, publish_run
from holdfast_cli.settings.resolving import resolve
from holdfast_cli.trainer_command import check_configuration, check_published
from holdfast_proto.run_files import run_key
from holdfast_proto.run_key import RunKeyFile
from holdfast_proto.v1.store_pb2 import RunSpec


def publish(flags: PublishFlags) -> None:
    """Write the spec of a run to Redis."""
    resolved = resolve("publish", flags.given, flags.command, flags.config)
    settings = resolved.settings
    assert settings.run is not None
    assert settings.checkpoint_directory is not None
    assert settings.redis_url is not None
    options = local_run_options(resolved, run=settings.run)
    check_published(options.command)
    check_configuration(options.command, ranks=settings.nodes * options.ranks, is_here=False)
    spec = run_spec(
        options,
        nodes=settings.nodes,
        checkpoints=primary_location(settings.checkpoint_directory),
        created_unix_s=time.time(),
        instance=secrets.token_hex(8),
    )
    key_file = RunKeyFile(settings.run_key_file or run_key(settings.directory.absolute(), settings.run), settings.run)
    make_key = key_file.make if settings.run_key_file else key_file.replace
    _publish(spec, settings.redis_url, settings.redis_password_file, key_file, make_key)
    name, nodes = settings.run, settings.nodes
    print(f"run {name} is published: it begins once {nodes} agents with --run {name} are ready")
    print(f"its key is {key_file.path}: agents and daemons need it in their --directory, or as --run-key-file")


def _publish(
    spec: RunSpec, url: str, password_file: Path | None, key_file: RunKeyFile, make_key: Callable[[], None]
) -> None:
    client = connect(url, password_file)
    try:
        publish_run(client, spec, key_file, make_key)
    except RedisError as error:
        raise CommandError(f"the run cannot be published at --redis {url}: {error}") from None
    finally:
        client.close()
