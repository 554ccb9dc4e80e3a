"""What agents and the daemon are told of a run."""

from holdfast_cli.checkpoints.location import secondary_location
from holdfast_cli.local_run.options import LocalRunOptions
from holdfast_proto.v1.store_pb2 import RunSpec


def run_spec(
    options: LocalRunOptions, *, nodes: int, checkpoints: str, created_unix_s: float, instance: str
) -> RunSpec:
    """Return the spec of a run with ``options.ranks`` ranks on each of ``nodes`` nodes."""
    return RunSpec(
        run=options.run,
        nodes=nodes,
        ranks_per_node=options.ranks,
        command=options.command,
        mode=options.mode,
        preset=options.preset,
        restart_patience=options.restart_patience,
        snapshot_every=options.snapshot_every,
        checkpoint_every=options.checkpoint_every,
        checkpoint_every_s=60 * options.checkpoint_every_minutes,
        checkpoint_directory=checkpoints,
        checkpoints_kept=options.checkpoints_kept,
        checkpoints_secondary=secondary_location(options.checkpoints_secondary),
        checkpoints_secondary_kept=options.checkpoints_secondary_kept,
        checkpoint_upload_bytes_per_s=options.checkpoint_upload_mb_per_s * 1e6,
        restarts_without_progress=options.restarts_without_progress,
        created_unix_s=created_unix_s,
        instance=instance,
        from_scratch=options.from_scratch,
        adopt=options.adopt,
        injection_allowed=options.faults_allowed,
    )
