"""The message that describes a run to agents and the daemon."""

import platform
from importlib.metadata import PackageNotFoundError, version

from holdfast_cli.checkpoints.location import secondary_location
from holdfast_cli.local_run.notify_spec import notify_message
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.settings.schema import QuarantineName
from holdfast_proto.left_out import parse, to_messages
from holdfast_proto.message_json import from_json
from holdfast_proto.v1.store_pb2 import RunSpec
from holdfast_proto.vocabulary import DEFAULTS


def run_spec(
    options: LocalRunOptions, *, nodes: int, checkpoints: str, created_unix_s: float, instance: str
) -> RunSpec:
    """Return the spec of a run with ``options.ranks`` ranks on each of ``nodes`` nodes."""
    rules = {tier: (getattr(options, f"loss_{tier}"), getattr(options, f"loss_{tier}_budget")) for tier in DEFAULTS}
    words = {
        "mode": options.mode,
        "preset": options.preset,
        "on_hang": options.on_hang,
        "loss_policy": {
            **{tier: {"action": action, "budget": budget} for tier, (action, budget) in rules.items()},
            "roll_backs": options.loss_roll_backs,
            "further_steps": options.loss_further_steps,
        },
    }
    spec = RunSpec(
        run=options.run,
        nodes=nodes,
        ranks_per_node=options.ranks,
        command=options.command,
        restart_patience=options.restart_patience,
        ras_off=not options.nccl_ras,
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
        continue_from=options.continue_from,
        injection_allowed=options.faults_allowed,
        notify=notify_message(options),
        versions=_versions(),
        auto=options.auto,
        restores=options.restore,
        replicate_every_s=options.replicate_every_s if nodes > 1 else 0.0,  # one node has no partner
        replica_bytes_per_s=options.replica_mb_per_s * 1e6,
        min_replicas=options.min_replicas,
        resize_after_s=options.resize_after_s if options.min_replicas else 0.0,
        checks_nodes=options.preflight,
        quarantines=options.quarantine == QuarantineName.ACT,
        left_out=to_messages(parse(options.loss_leave_out)),
    )
    return from_json(words, spec)  # it knows the names of all values of enumerations


def _versions() -> dict[str, str]:
    """Return the versions of what a report should name. Nothing is imported: torch takes seconds."""
    found = {"python": platform.python_version()}
    for name, package in (("holdfast", "holdfast-torch"), ("torch", "torch")):
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found
