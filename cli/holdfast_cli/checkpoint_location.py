"""What ``--checkpoints`` and ``--checkpoints-secondary`` name, checked before anything starts."""

from pathlib import Path

from holdfast_cli.errors import CommandError, ConfigurationError


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
    from holdfast_agent.locations import PRIMARY, is_url, open_objects
    from holdfast_proto.checkpoint.errors import CheckpointError

    try:
        if is_url(location):
            return sorted(open_objects(PRIMARY, location).manifests())
        return CheckpointDirectory(Path(location), kept=1).committed()
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
