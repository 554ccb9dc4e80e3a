"""``holdfast publish``: say what a run over several nodes is; its agents and daemon are placed by others."""

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast_cli.commands.options import RankCommand, RequiredRedis
from holdfast_cli.commands.training_options import TrainingOptions, takes_training_options

if TYPE_CHECKING:
    from holdfast_proto.v1.store_pb2 import RunSpec


@takes_training_options
def publish(
    command: RankCommand,
    *,
    run: Annotated[str, typer.Option(help="Name of the run; with checkpoints there, it goes on from the newest.")],
    redis: RequiredRedis,
    checkpoints: Annotated[
        str, typer.Option(help="Folder for checkpoints, the same on all nodes, or URL: s3://BUCKET/PREFIX, gs://...")
    ],
    nodes: Annotated[int, typer.Option(help="Nodes that train; further agents are spares.", min=1)],
    ranks_per_node: Annotated[int, typer.Option(help="Training processes on each node.", min=1)],
    training: TrainingOptions,
) -> None:
    """Publish a run over several nodes in Redis: it begins once so many of its agents are ready.

    Then start `holdfast agent` on each node; `holdfast daemon` must serve the Redis. Example:

    holdfast publish --run big --nodes 4 --ranks-per-node 8 --redis redis://head:6379 --checkpoints /shared/big
    -- python train.py
    """
    from holdfast_cli.checkpoints.location import primary_location
    from holdfast_cli.local_run.run_spec import run_spec
    from holdfast_cli.trainer_command import checked_configuration

    options = training.with_others(run=run, command=tuple(command), ranks=ranks_per_node, redis_url=redis)
    checked_configuration(command, ranks=nodes * ranks_per_node)
    spec = run_spec(
        options,
        nodes=nodes,
        checkpoints=primary_location(checkpoints),
        created_unix_s=time.time(),
        instance=secrets.token_hex(8),
    )
    _publish(spec, redis, training.redis_password_file)
    print(f"run {run} is published: it begins once {nodes} agents with --run {run} are ready")


def _publish(spec: "RunSpec", url: str, password_file: Path | None) -> None:
    import redis

    from holdfast_cli.errors import CommandError
    from holdfast_cli.local_run.store import connect, publish_run

    client = connect(url, password_file)
    try:
        publish_run(client, spec)
    except redis.RedisError as error:
        raise CommandError(f"the run cannot be published at --redis {url}: {error}") from None
    finally:
        client.close()
