"""What to run on this machine, checked."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast_base.server_tls import TlsError, console_tls
from holdfast_base.sockets import split_address
from holdfast_checkpoint.store.locations import is_url
from holdfast_cli.checkpoints.location import primary_location, secondary_location
from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.notify_spec import check_notify
from holdfast_cli.local_run.store import check_url
from holdfast_cli.settings.resolving import Resolved
from holdfast_cli.settings.schema import ModeName, QuarantineName, RunSettings, schema
from holdfast_proto import keys
from holdfast_proto.left_out import parse
from holdfast_proto.vocabulary import ROLLED_BACK


def check_name(run: str) -> None:
    """Raise SettingsError unless a run can have this name."""
    try:
        keys.check_run_name(run)
    except ValueError as error:
        raise SettingsError(f"--run: {error}") from None


def check_guarded(folder: Path, shown: str) -> None:
    """Raise SettingsError unless a guard can look at ``folder``. It may not exist yet. ``shown``: its name."""
    if len(folder.parts) > 1 and folder.parts[0].endswith(":"):  # a path has only one of the slashes of a URL
        raise SettingsError(f"{shown} is a URL: name a folder that this machine has mounted")
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{shown} is a file: name the folder that holds the checkpoints")


def check_console_hosts(hosts: Iterable[str]) -> None:
    """Raise SettingsError unless each is a name by which browsers can call a console, with or without a scheme."""
    for host in hosts:
        scheme, _, place = host.lower().rpartition("://")
        if scheme not in ("", "http", "https") or not _is_host(place.removesuffix("/"), with_port=bool(scheme)):
            raise SettingsError(f"--console-host {host}: use NAME, http://NAME or https://NAME, without a path")


def check_replica_place(topology: str | None, address: str | None) -> None:
    """Raise SettingsError unless a node can have this failure domain and this address. None: it is not set."""
    if topology is not None and not keys.RUN_NAME.fullmatch(topology):
        raise SettingsError(
            f"--topology {topology[:80]!r}: use 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or"
            " digit"
        )
    try:
        split_address(address or "localhost")
    except ValueError as error:
        raise SettingsError(f"--replica-address: {error}") from None


def check_left_out(words: Iterable[str]) -> None:
    """Raise SettingsError unless each word names data that can be left out."""
    try:
        parse(words)
    except ValueError as error:
        raise SettingsError(f"--leave-out: {error}") from None


def check_console_tls(certificate: Path | None, key: Path | None, client_authority: Path | None) -> None:
    """Raise SettingsError unless the console can serve with these files, or has none of them."""
    try:
        console_tls(certificate, key, client_authority)
    except TlsError as error:
        raise SettingsError(str(error)) from None


def _is_host(place: str, *, with_port: bool) -> bool:
    try:
        parts = urlsplit(f"//{place}")
        has_port = parts.port is not None
    except ValueError:
        return False
    is_alone = parts.netloc == place and "@" not in place and " " not in place and place.isprintable()
    return is_alone and parts.hostname not in (None, "0.0.0.0", "::") and (with_port or not has_port)


@dataclass(frozen=True, kw_only=True)
class LocalRunOptions(RunSettings):
    """The settings of a run that has a name. Creating one raises SettingsError for settings that make no sense."""

    run: str = field()
    """Name of the run. (``field()`` takes the default away that the base class has.)"""
    restarts_without_progress: int = 3
    """Restarts in a row without a new step after which the run fails."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to those of the components and ranks."""

    def __post_init__(self) -> None:
        """Check each setting, and those that depend on each other."""
        check_name(self.run)
        if not self.command and self.ranks:
            raise SettingsError("nothing to run: give the trainer's command after --")
        self._check_ranges()
        for problem in self._contradictions():
            raise SettingsError(problem)
        if self.guard is not None:
            check_guarded(self.guard, f"--guard {self.guard}")
        for problem in self._wrong_locations():
            raise SettingsError(problem)
        check_replica_place(self.topology, self.replica_address)
        check_left_out(self.loss_leave_out)
        check_notify(self)
        check_console_hosts(self.console_hosts)
        check_console_tls(self.console_cert_file, self.console_key_file, self.console_client_ca)
        if self.redis_url is not None:
            check_url(self.redis_url)

    def _contradictions(self) -> Iterator[str]:
        """Yield what is wrong with settings that depend on each other."""
        every = f"--checkpoint-every {self.checkpoint_every}"
        if self.checkpoint_every and not self.snapshot_every:
            yield (
                f"{every} with --snapshot-every 0: a checkpoint is written from a "
                "snapshot: raise --snapshot-every, or set --checkpoint-every 0"
            )
        elif self.checkpoint_every and self.checkpoint_every % self.snapshot_every:
            yield (
                f"{every}: use a multiple of --snapshot-every {self.snapshot_every}, "
                "for a checkpoint is written from a snapshot"
            )
        for tier in self.tiers_rolled_back:
            if tier not in ROLLED_BACK:
                yield f'loss.{tier} = "roll_back": it is for {", ".join(ROLLED_BACK)}: use note, notify or stop'
            if self.ranks and (self.auto or not self.snapshot_every):
                lacks = "--auto" if self.auto else "--snapshot-every 0"
                yield f'loss.{tier} = "roll_back" with {lacks}: there are no states to return to: leave one of them out'
        if self.loss_leave_out and self.ranks and self.auto:
            yield "--leave-out with --auto: the script's position in its data is not known: leave one of them out"
        if self.min_replicas:
            yield from self._why_no_node_can_be_missing()
        if self.quarantine == QuarantineName.ACT:
            yield from self._why_no_node_can_be_replaced()
        restoring = [("--adopt", self.adopt), ("--continue-from", self.continue_from is not None)]
        for flag in (flag for flag, is_given in restoring if is_given):
            if self.from_scratch:
                yield f"--from-scratch and {flag} exclude each other: one starts from the seed, the other continues"
            if self.auto and not self.restore:
                yield f"--auto restores nothing, and {flag} asks for it: leave one of them out"

    def _why_no_node_can_be_missing(self) -> Iterator[str]:
        """Yield why a run with these settings cannot continue with fewer nodes."""
        flag = f"--min-replicas {self.min_replicas}"
        if self.nodes == 1:
            yield f"{flag} with --nodes 1: no node can be missing: raise --nodes, or leave --min-replicas out"
        elif self.min_replicas >= (most := (self.nodes or 0) * self.ranks):
            yield f"{flag} leaves none out: {most} ranks are {most} replicas at most: set it below {most}"
        if not self.snapshot_every:
            yield f"{flag} with --snapshot-every 0: there are no states to continue from: leave one of them out"
        if self.mode == ModeName.OBSERVE:
            yield f"{flag} with --mode observe, which starts no rank again: use --mode act, or leave --min-replicas out"

    def _why_no_node_can_be_replaced(self) -> Iterator[str]:
        """Yield why a run with these settings cannot leave out a node that should not train."""
        flag = f"--quarantine {self.quarantine}"
        if self.nodes == 1:
            yield f"{flag} with --nodes 1: no other node can take the place of one: raise --nodes, or use report"
        if self.mode == ModeName.OBSERVE:
            yield f"{flag} with --mode observe, which starts no rank: use --mode act, or --quarantine report"

    def _wrong_locations(self) -> Iterator[str]:
        primary = self.checkpoint_directory and primary_location(self.checkpoint_directory)
        secondary = secondary_location(self.checkpoints_secondary)
        if secondary is not None and secondary == primary:
            yield "--checkpoints-secondary is the place of --checkpoints: name another one, or leave it out"
        if self.checkpoint_staging is not None and not (primary and is_url(primary)):
            yield "--checkpoint-staging has no effect without a URL in --checkpoints: leave it out, or name a URL"
        if secondary is None and self.checkpoints_secondary_kept is not None:
            yield "--checkpoints-secondary-keep has no effect without --checkpoints-secondary: set both or none"

    def _check_ranges(self) -> None:
        for name, setting in schema().items():
            value = getattr(self, name)
            if not isinstance(value, int | float) or (name == "ranks" and not self.command):
                continue  # without a command another launcher starts the ranks
            problem = setting.range_problem(value)
            if problem:
                raise SettingsError(f"{setting.shown} {value:g}: {problem}")


def local_run_options(resolved: Resolved, *, run: str, **changes: Any) -> LocalRunOptions:
    """Return the options of a run called ``run``. Raises SettingsError, which names the lines of the file."""
    try:
        return LocalRunOptions(**{**vars(resolved.settings), "run": run, **changes})
    except SettingsError as error:
        raise SettingsError(resolved.located(str(error))) from None
