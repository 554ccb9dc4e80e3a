"""Checks ``--checkpoints`` and ``--checkpoints-secondary`` before anything starts."""

from pathlib import Path

from holdfast_agent.checkpoints.claim import other_run, owners_of
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable
from holdfast_checkpoint.store.locations import PRIMARY, SECONDARY, check_location, is_url, open_objects
from holdfast_checkpoint.store.object_checkpoints import ObjectCheckpoints
from holdfast_checkpoint.store.object_store import open_store
from holdfast_checkpoint.store.retries import is_final
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints, open_checkpoints
from holdfast_cli.errors import CheckpointsUnavailableError, CommandError, SettingsError

_FIX = "start the run again when the files are back, or name another folder with --checkpoints"


def primary_location(location: str) -> str:
    """Return ``--checkpoints`` as it is passed on: absolute path or URL. Raises SettingsError."""
    return _checked(PRIMARY, location)


def secondary_location(location: str | None) -> str | None:
    """Return ``--checkpoints-secondary`` likewise."""
    return None if location is None else _checked(SECONDARY, location)


def usable_steps(location: str, run: str) -> list[int]:
    """Return the steps of the newest history at a location of which no file is missing, ascending.

    Raises CommandError.
    """
    try:
        checkpoints = _opened(location, run)
        return [step for step in checkpoints.committed() if not checkpoints.at(step).missing(step)]
    except CheckpointError as error:
        raise CommandError(str(error)) from None


def owner_of(location: str) -> str | None:
    """Return the name of the run that the checkpoints at a location belong to; None: there are none.

    Raises CommandError, SettingsError if they belong to several, or if the location is wrong.
    """
    try:
        owners = sorted(owners_of(_opened(location, "")))
    except CheckpointError as error:
        raise _before_a_start(error) from None
    if len(owners) > 1:
        raise SettingsError(f"--checkpoints {location} holds checkpoints of {', '.join(owners)}: choose with --run")
    return owners[0] if owners else None


def check_owner(location: str, run: str) -> None:
    """Raise SettingsError if the checkpoints at a location belong to runs of other names, or if it is wrong.

    Raises CommandError if it cannot be read now.
    """
    try:
        owners = owners_of(_opened(location, run))
    except CheckpointError as error:
        raise _before_a_start(error) from None
    if owners and run not in owners:
        raise SettingsError(other_run(location, owners, run))


def _before_a_start(error: CheckpointError) -> CommandError:
    """Return the error of a place that a run names: for a bucket that is missing, say, no retry can help.

    Without a cause, the error is about checkpoints that are there and lack a file. Else the place cannot be looked at.
    """
    if isinstance(error.__cause__, Exception) and is_final(error.__cause__):
        return SettingsError(str(error))
    if isinstance(error, CheckpointUnavailable) and error.__cause__ is None:
        return CheckpointsUnavailableError(f"{error}: nothing was started; {_FIX}")
    return CommandError(str(error))


def _opened(location: str, run: str) -> RunCheckpoints:
    try:
        return open_checkpoints(primary_location(location), Path(), kept=1, run=run)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def open_remote(setting: str, url: str) -> ObjectCheckpoints:
    """Return the checkpoints at a URL that ``setting`` names. Raises CommandError."""
    try:
        return open_objects(setting, url)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    except CheckpointError as error:
        raise CommandError(str(error)) from None


def _checked(setting: str, location: str) -> str:
    try:
        checked = check_location(setting, location)
        if is_url(checked):
            open_store(setting, checked)
        elif _is_no_folder(Path(checked)):
            raise SettingsError(f"{setting} {location}: is a file: name a folder or a URL")
    except (ValueError, CheckpointError) as error:
        raise SettingsError(str(error)) from None
    return checked


def _is_no_folder(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except OSError:
        return False  # it cannot be looked at, perhaps only now: the first use of the folder reports why
