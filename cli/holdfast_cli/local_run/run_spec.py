"""The message that describes a run to agents and the daemon."""

import platform
from importlib.metadata import PackageNotFoundError, version

from holdfast_cli.checkpoints.location import secondary_location
from holdfast_cli.local_run.notify_spec import notify_message
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.settings.schema import HangActionName, LossActionName, ModeName, PresetName
from holdfast_proto.v1.store_pb2 import (
    HANG_ACTION_ABORT,
    HANG_ACTION_REPORT,
    LOSS_ACTION_NOTE,
    LOSS_ACTION_NOTIFY,
    LOSS_ACTION_STOP,
    MODE_ACT,
    MODE_OBSERVE,
    PRESET_DEFAULT,
    PRESET_FAST,
    PRESET_PATIENT,
    LossPolicy,
    LossRule,
    RunSpec,
)
from holdfast_proto.vocabulary import DEFAULTS

_ACTIONS = {
    LossActionName.NOTE: LOSS_ACTION_NOTE,
    LossActionName.NOTIFY: LOSS_ACTION_NOTIFY,
    LossActionName.STOP: LOSS_ACTION_STOP,
}
_HANG_ACTIONS = {HangActionName.REPORT: HANG_ACTION_REPORT, HangActionName.ABORT: HANG_ACTION_ABORT}
_MODES = {ModeName.OBSERVE: MODE_OBSERVE, ModeName.ACT: MODE_ACT}
_PRESETS = {
    PresetName.FAST: PRESET_FAST,
    PresetName.DEFAULT: PRESET_DEFAULT,
    PresetName.PATIENT: PRESET_PATIENT,
}


def run_spec(
    options: LocalRunOptions, *, nodes: int, checkpoints: str, created_unix_s: float, instance: str
) -> RunSpec:
    """Return the spec of a run with ``options.ranks`` ranks on each of ``nodes`` nodes."""
    return RunSpec(
        run=options.run,
        nodes=nodes,
        ranks_per_node=options.ranks,
        command=options.command,
        mode=_MODES[options.mode],
        preset=_PRESETS[options.preset],
        restart_patience=options.restart_patience,
        ras_off=not options.nccl_ras,
        on_hang=_HANG_ACTIONS[options.on_hang],
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
        loss_policy=_loss_policy(options),
        notify=notify_message(options),
        versions=_versions(),
        auto=options.auto,
    )


def _loss_policy(options: LocalRunOptions) -> LossPolicy:
    def rule(tier: str) -> LossRule:
        action, budget = getattr(options, f"loss_{tier}"), getattr(options, f"loss_{tier}_budget")
        return LossRule(action=_ACTIONS[action], budget=budget)

    return LossPolicy(**{tier: rule(tier) for tier in DEFAULTS})


def _versions() -> dict[str, str]:
    """Return the versions of what a report should name. Nothing is imported: torch takes seconds."""
    found = {"python": platform.python_version()}
    for name, package in (("holdfast", "holdfast-torch"), ("torch", "torch")):
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found
