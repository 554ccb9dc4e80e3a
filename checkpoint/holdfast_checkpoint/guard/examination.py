"""Judges one checkpoint: is it readable, is it new, is it whole, is it finite?"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast_checkpoint.guard.candidates import Candidate, NotACheckpointError, look_at
from holdfast_checkpoint.guard.damage import DamagedFileError, DamageFound, Reason, printable
from holdfast_checkpoint.guard.inventory import Inventory, take_inventory
from holdfast_checkpoint.guard.paced_reading import FileReader, Pace
from holdfast_checkpoint.guard.sampled_values import (
    ValuesRead,
    are_equal,
    covers_all_weights,
    may_be_equal,
    read_values,
)
from holdfast_checkpoint.guard.tensor_place import Role
from holdfast_checkpoint.guard.torch_archive import TorchArchive


@dataclass
class Examined:
    """A checkpoint, and what was found in it."""

    candidate: Candidate
    inventory: Inventory
    values: ValuesRead
    findings: list[DamageFound] = field(default_factory=list)
    bytes_read: int = 0
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.findings

    @property
    def name(self) -> str:
        """Name of its file or folder."""
        return self.candidate.name

    @property
    def step(self) -> int | None:
        """Its step, if its name or its files tell."""
        return self.inventory.step if self.inventory.step is not None else self.candidate.step

    def forget_details(self) -> None:
        """Give up the list of tensors, which takes memory. Nothing can be compared with this checkpoint any more."""
        self.inventory = Inventory(step=self.inventory.step)
        self.values = ValuesRead()


class Examiner:
    """Examines checkpoints. ``sample_bytes``: most bytes of tensors to read of each; None: all.

    ``pace`` says how fast to read.
    """

    def __init__(self, *, sample_bytes: int | None, pace: Pace) -> None:
        self._sample_bytes = sample_bytes
        self._pace = pace
        # What is read in full would push the run's own files out of the page cache.
        self._reader = FileReader(self._pace, drops_cache=sample_bytes is None)

    def examine(self, candidate: Candidate, before: Examined | None, newest_good: Examined | None) -> Examined:
        """Judge a checkpoint that looks complete.

        ``before``: the complete one of the step before; ``newest_good``: the newest good one of an earlier step.
        Raises OSError if a file cannot be read.
        """
        started_s, read_before = time.monotonic(), self._pace.bytes_total
        inventory = take_inventory(candidate, self._reader)
        found = Examined(candidate, inventory, ValuesRead(), list(inventory.findings))
        if not found.findings and not inventory.places:
            found.findings.append(DamageFound(Reason.DAMAGED, "no file of it holds a tensor"))
        if not found.findings:
            found.findings += self._damaged_values(found)
        if not any(finding.reason is Reason.DAMAGED for finding in found.findings):
            found.findings += self._compare(found, before, newest_good)
        found.bytes_read = self._pace.bytes_total - read_before
        found.seconds = time.monotonic() - started_s
        return found

    def _damaged_values(self, found: Examined) -> Iterator[DamageFound]:
        try:
            found.values = read_values(found.inventory.places, self._reader, self._sample_bytes)
            if self._sample_bytes is None:
                self._check_crcs(found.inventory)
        except DamagedFileError as error:
            yield DamageFound(Reason.DAMAGED, str(error), error.is_final)
            return
        bad = found.values.bad
        if bad:
            name = min(bad)
            what = "NaN" if bad[name].nan else "infinite numbers"
            role = found.inventory.places[name].role
            yield DamageFound(
                Reason.NON_FINITE,
                f"{what} in {len(bad)} of the {found.values.tensors} tensors that were read, first in"
                f" {printable(name)} ({role})",
            )

    def _check_crcs(self, inventory: Inventory) -> None:
        for path in inventory.archives:
            with self._reader.open(path) as file:
                try:
                    TorchArchive(file).check_crcs()
                except DamagedFileError as error:
                    raise type(error)(f"{path.name}: {error}") from None

    def _compare(self, found: Examined, before: Examined | None, newest_good: Examined | None) -> Iterator[DamageFound]:
        if before is not None and before.step != found.step and may_be_equal(found.values, before.values):
            yield from self._stale(found, before)
        if newest_good is not None and newest_good.step != found.step:
            for loss in losses(newest_good.inventory, found.inventory):
                yield DamageFound(Reason.SHRUNK, f"{loss}, compared with {newest_good.name}")

    def _stale(self, found: Examined, before: Examined) -> Iterator[DamageFound]:
        """Yield a finding if all weights are those of ``before``. The parts that were read are.

        All bytes are compared if ``before`` is still there. Otherwise a part of each tensor must do.
        """
        total = found.inventory.nbytes(Role.WEIGHTS)
        read = sum(window.size for window in found.values.windows.values())
        what = "its model weights are byte-identical to those of"
        if self._sample_bytes is not None and read < total:
            if not _is_unchanged(before.candidate):
                if not covers_all_weights(found.values, found.inventory.places):
                    return
                what = f"the {read} bytes that were read of its {total} bytes of model weights are those of"
            elif not self._are_equal(found, before):
                return
        yield DamageFound(Reason.STALE, f"{what} {before.name}")

    def _are_equal(self, found: Examined, before: Examined) -> bool:
        try:
            return are_equal(found.inventory.places, before.inventory.places, self._reader)
        except DamagedFileError:  # one of them has no such bytes
            return False


def _is_unchanged(candidate: Candidate) -> bool:
    """Return whether a checkpoint is still there as it was. Some frameworks write over one again and again."""
    try:
        return look_at(candidate.path).files == candidate.files
    except (OSError, NotACheckpointError):
        return False


_RANK = re.compile(r"(\d+)")


def losses(before: Inventory, now: Inventory) -> Iterator[str]:
    """Yield one text for each kind of loss. A world of another size is none, if it kept the state."""
    lost_ranks = before.ranks - now.ranks
    if _is_resharded(before, now):
        lost_ranks = frozenset()
    else:
        yield from _ranks(lost_ranks, now)
    names_before, names_now = _names(before), _names(now)
    missing = {name for name in names_before.keys() - names_now.keys() if not _is_of(name, before.ranks - now.ranks)}
    for role in (Role.WEIGHTS, Role.OPTIMIZER):
        gone = sorted(name for name in missing if names_before[name] is role)
        if gone:
            total = sum(1 for known in names_before.values() if known is role)
            which = "all" if len(gone) == total else f"{len(gone)} of"
            yield f"{which} {total} tensors of the {role} are missing, such as {printable(gone[0])}"
    less = before.nbytes(Role.WEIGHTS) - now.nbytes(Role.WEIGHTS)
    if less > 0 and not missing and not lost_ranks and not _is_resharded(before, now):
        yield f"the weights have {now.nbytes(Role.WEIGHTS)} bytes instead of {before.nbytes(Role.WEIGHTS)}"


def _ranks(lost: frozenset[str], now: Inventory) -> Iterator[str]:
    """Yield the files of ranks that are gone. A smaller world has no file of the highest ranks."""
    highest = max((_number(name) for name in now.ranks if name.startswith("rng_state")), default=-1)
    certain = sorted(name for name in lost if not name.startswith("rng_state") or _number(name) < highest)
    if certain:
        yield f"{len(certain)} of the files and folders of ranks are missing, such as {printable(certain[0])}"


def _number(name: str) -> int:
    found = _RANK.search(name)
    return int(found[1]) if found else -1


def _names(inventory: Inventory) -> dict[str, Role]:
    """Return each tensor of the state. The chunks of a tensor depend on the number of ranks, and count once."""
    found: dict[str, Role] = {}
    for name, place in inventory.places.items():
        if place.role is not Role.OTHER:
            found[name.rpartition("@")[0] or name] = place.role
    return found


def _is_of(name: str, ranks: frozenset[str]) -> bool:
    return any(part in ranks for part in name.split("/"))


def _is_resharded(before: Inventory, now: Inventory) -> bool:
    """Return whether the ranks hold other parts of the tensors than before."""
    shared = (name for name in before.places.keys() & now.places.keys() if _is_of(name, before.ranks))
    return any(before.places[name].shape != now.places[name].shape for name in shared)
