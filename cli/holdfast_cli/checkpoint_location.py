"""What ``--checkpoints`` and ``--checkpoints-secondary`` name, checked before anything starts."""

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast_cli.errors import CommandError, ConfigurationError

if TYPE_CHECKING:
    from holdfast_agent.object_checkpoints import ObjectCheckpoints


def primary_location(location: str) -> str:
    """Return ``--checkpoints`` as it is passed on: absolute path or URL. Raises ConfigurationError."""
    from holdfast_agent.locations import PRIMARY

    return _checked(PRIMARY, location)


def secondary_location(location: str | None) -> str | None:
    """Return ``--checkpoints-secondary`` likewise."""
    from holdfast_agent.locations import SECONDARY

    return None if location is None else _checked(SECONDARY, location)


def committed_steps(location: str) -> list[int]:
    """Return the steps of the checkpoints at a location, ascending. Raises CommandError."""
    from holdfast_agent.checkpoint import CheckpointDirectory
    from holdfast_agent.locations import PRIMARY, is_url
    from holdfast_proto.checkpoint.errors import CheckpointError

    try:
        if is_url(location):
            return sorted(open_remote(PRIMARY, location).manifests())
        return CheckpointDirectory(Path(location), kept=1).committed()
    except CheckpointError as error:
        raise CommandError(str(error)) from None


def open_remote(setting: str, url: str) -> "ObjectCheckpoints":
    """Return the checkpoints at a URL that ``setting`` names. Raises CommandError."""
    from holdfast_agent.locations import open_objects
    from holdfast_proto.checkpoint.errors import CheckpointError

    try:
        return open_objects(setting, url)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    except CheckpointError as error:
        raise CommandError(str(error)) from None


def _checked(setting: str, location: str) -> str:
    from holdfast_agent.locations import check_location, is_url
    from holdfast_agent.object_store import open_store
    from holdfast_proto.checkpoint.errors import CheckpointError

    try:
        checked = check_location(setting, location)
        if is_url(checked):
            open_store(setting, checked)
    except (ValueError, CheckpointError) as error:
        raise ConfigurationError(str(error)) from None
    return checked
