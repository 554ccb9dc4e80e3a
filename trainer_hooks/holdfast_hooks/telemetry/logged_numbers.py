"""Numbers that a script or its framework logs under names of its own, such as a reward."""

import threading
from collections.abc import Mapping
from typing import Any

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.telemetry.deferred import DeferredNumbers, to_number
from holdfast_proto.limits import LOGGED_NAME_CHARACTERS, MOST_LOGGED_NAMES
from holdfast_proto.v1.common_pb2 import LoggedNumber

_Entry = tuple[int, float | DeferredNumbers]
"""Step and value of a number."""


class LoggedNumbers:
    """Keeps the newest number of each name until it is reported. Only the newest one is of interest."""

    def __init__(self, once: OnceLog) -> None:
        self._once = once
        self._lock = threading.Lock()  # between threads of the script: any of them may log
        self._names: set[str] = set()
        """Names that were logged so far. A script that makes up a new name in each step must not fill Prometheus."""
        self._is_full = False
        self._newest: dict[str, _Entry] = {}
        """Numbers that were not taken yet, by name."""
        self._coming: dict[str, _Entry] = {}
        """Numbers that were taken while a GPU still owed them (reporter thread)."""

    def add(self, numbers: Mapping[Any, object], step: int) -> None:
        """Keep the numbers of a step. What is no number is left out: scripts log texts and images, too.

        This never raises into the script, whatever its objects do.
        """
        try:
            with self._lock:
                for name, value in numbers.items():
                    self._add(name, value, step)
        except Exception as error:  # noqa: BLE001 - objects of the script may raise anything
            self._once.warn("logged numbers are not shown", repr(error))

    def take(self) -> list[LoggedNumber]:
        """Return what is new, each name once (reporter thread). Never waits.

        A number that a GPU still owes is kept until it has arrived, with the newest one next to it. If it were dropped
        for each newer one, a host that is always ahead of its GPU would never show any.
        """
        taken: dict[str, LoggedNumber] = {}
        for name in list(self._coming):
            self._read(name, self._coming.pop(name), taken)
        for name in list(self._newest):  # another thread may log now: list() and pop() are one operation each
            if name not in self._coming:
                self._read(name, self._newest.pop(name), taken)
        return [*taken.values()]

    def _read(self, name: str, entry: _Entry, taken: dict[str, LoggedNumber]) -> None:
        step, value = entry
        if isinstance(value, DeferredNumbers):
            arrived = value.read()
            if arrived is None:
                self._coming[name] = entry
                return
            value = arrived[0]
        try:
            taken[name] = LoggedNumber(name=name, value=float(value), step=step)
        except (TypeError, ValueError, OverflowError):  # a complex number, which a GPU computed
            return

    def _add(self, name: object, value: object, step: int) -> None:
        if not isinstance(name, str):
            self._refuse_name(name)
            return
        name = str.__str__(name)  # of a subclass, the text itself
        is_new = name not in self._names
        if is_new and self._is_full:
            return
        if is_new and not (0 < len(name) <= LOGGED_NAME_CHARACTERS and name.isprintable()):
            self._refuse_name(name)
            return
        try:
            number = _number(value)
        except Exception:  # noqa: BLE001 - an object's own conversion may raise anything
            return
        if is_new and len(self._names) >= MOST_LOGGED_NAMES:
            self._is_full = True
            self._once.warn(
                f"numbers are shown under {MOST_LOGGED_NAMES} names, and the script logs more",
                f"{name!r} is left out, and so are later names",
            )
            return
        self._names.add(name)
        self._newest[name] = step, number

    def _refuse_name(self, name: object) -> None:
        self._once.warn(
            "a logged number is not shown",
            f"its name is no text of 1 to {LOGGED_NAME_CHARACTERS} printable characters: {str(name)[:80]!r}",
        )


def _number(value: object) -> float | DeferredNumbers:
    """Return ``value`` as :func:`to_number` does, also of an array with one number.

    Raises an error for anything else. float() would also read some texts, and the real part of numpy's complex numbers.
    """
    if getattr(value, "size", None) == 1:  # of numpy; a tensor's size is a method
        value = value.item()  # type: ignore[attr-defined]
    if isinstance(value, (str, bytes, bytearray, complex)):
        raise TypeError
    return to_number(value)
