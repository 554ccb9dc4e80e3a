"""Finds the run, and its daemon, that an operator names."""

from dataclasses import dataclass
from pathlib import Path

from holdfast_cli.control import ControlClient
from holdfast_cli.errors import CommandError
from holdfast_cli.flags.common import DEFAULT_DIRECTORY
from holdfast_cli.run_folder.record import RunRecord, find_record
from holdfast_proto.run_files import logs


@dataclass(frozen=True)
class Target:
    """A run and its daemon's control socket. ``record``: only of a run that `holdfast run` started."""

    run: str
    control: Path
    record: RunRecord | None

    @property
    def ended(self) -> RunRecord | None:
        """The record of a run that is known to have ended."""
        return self.record if self.record is not None and self.record.outcome else None

    @property
    def unsupervised(self) -> RunRecord | None:
        """The record of a run that has ended, or whose supervisor was killed: its files are all that is left."""
        is_alive = self.record is not None and self.record.supervisor.is_alive()
        return self.ended if is_alive else self.record

    def connect(self) -> ControlClient:
        """Return a client of the daemon. Raises CommandError if the run has ended."""
        if self.ended is not None:
            raise CommandError(
                f"run {self.run} has ended: {self.ended.outcome} (its logs: {logs(Path(self.ended.directory))})"
            )
        if self.record is not None and not self.record.supervisor.is_alive():
            folder = Path(self.record.directory).parent
            where = f"--run {self.run}" + ("" if folder == DEFAULT_DIRECTORY.absolute() else f" --directory {folder}")
            raise CommandError(
                f"run {self.run} was cut short: `holdfast console {where}` shows what is known of it; clean up with "
                f"`holdfast stop {where}`, or start it again under the same name to continue"
            )
        # The supervisor records its components once all of them serve.
        is_starting = self.record is not None and not self.record.components
        return ControlClient(self.control, self.run, is_starting=is_starting)


def find_target(directory: Path, run: str | None, control: Path | None) -> Target:
    """Return the run that the options name. Raises CommandError if there is none."""
    if control is not None:
        return Target(run or "", control, None)
    record = find_record(directory, run)
    return Target(record.run, Path(record.control), record)
