"""The results of a guard as lines for people and as objects for scripts."""

from collections.abc import Mapping
from typing import Any

from holdfast_checkpoint.guard.examination import Examined
from holdfast_checkpoint.guard.folder_guard import FolderGuard, Judgment, Outcome
from holdfast_checkpoint.guard.tensor_place import Role

_MB = 1e6


def judgment_line(judgment: Judgment, newest_good: Examined | None) -> str:
    """Return one line about a checkpoint. A bad one is followed by the newest good one."""
    name = judgment.name if judgment.step is None or str(judgment.step) in judgment.name else _with_step(judgment)
    if judgment.outcome is Outcome.UNREADABLE:
        return f"{name}: cannot be read now ({judgment.problem}): make it readable for this user; it is tried again"
    if judgment.outcome is Outcome.INCOMPLETE:
        return f"{name}: incomplete: {'; '.join(each.text for each in judgment.findings)}"
    if judgment.outcome is Outcome.BAD:
        reasons = "; ".join(f"{finding.reason}: {finding.text}" for finding in judgment.findings)
        return f"{name}: BAD: {reasons} · {newest_good_text(newest_good)}"
    return f"{name}: good · {_extent(judgment.examined)}"


def newest_good_text(newest_good: Examined | None) -> str:
    """Return which checkpoint to continue from."""
    if newest_good is None:
        return "no good checkpoint is there"
    return f"the newest good one is {newest_good.name}"


def closing_lines(guard: FolderGuard) -> list[str]:
    """Return the last lines of a look that ends."""
    newest, good = guard.newest, guard.newest_good
    if newest is None:
        return [f"{guard.folder}: no complete checkpoint could be read"]
    if newest.is_good:
        return [f"{newest_good_text(good)}, which is the newest complete one"]
    return [f"the newest complete checkpoint {newest.name} is bad: {newest_good_text(good)}"]


def judgment_object(judgment: Judgment, newest_good: Examined | None) -> Mapping[str, Any]:
    """Return a judgment for scripts, with the line for people."""
    examined = judgment.examined
    numbers = {}
    if examined is not None:
        numbers = {
            "tensors": len(examined.inventory.places),
            "weight_bytes": examined.inventory.nbytes(Role.WEIGHTS),
            "read_bytes": examined.bytes_read,
            "seconds": round(examined.seconds, 3),
            "unchecked": examined.inventory.unchecked,
        }
    return {
        "checkpoint": judgment.name,
        "step": judgment.step,
        "outcome": judgment.outcome.value,
        "findings": [{"reason": finding.reason.value, "text": finding.text} for finding in judgment.findings],
        "problem": judgment.problem,
        **numbers,
        "newest_good": newest_good.name if newest_good is not None else None,
        "newest_good_step": newest_good.step if newest_good is not None else None,
        "line": judgment_line(judgment, newest_good),
    }


def _with_step(judgment: Judgment) -> str:
    return f"{judgment.name} (step {judgment.step})"


def _extent(examined: Examined | None) -> str:
    if examined is None:
        return "nothing was read"
    inventory = examined.inventory
    total = sum(place.content_bytes for place in inventory.places.values())
    text = (
        f"{len(inventory.places)} tensors and objects, {total / _MB:,.1f} MB, of which"
        f" {examined.bytes_read / _MB:,.1f} MB were read in {examined.seconds:.1f} s"
    )
    return f"{text} · not looked into: {'; '.join(inventory.unchecked)}" if inventory.unchecked else text
