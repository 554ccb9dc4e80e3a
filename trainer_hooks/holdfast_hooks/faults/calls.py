"""Faults of the calls between ranks: each changes one call and makes all others as they are."""

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from holdfast_hooks.faults.fault import Fault, Site

if TYPE_CHECKING:
    import torch

    from holdfast_hooks.progress.call_watch import CallResult, GroupCall


def missing_name() -> str:
    """Return what this torch lacks for faults of calls, as Python says it; "" if nothing or if there is no torch yet.

    A fault that found this out when it strikes would end the rank.
    """
    if "torch" in sys.modules:
        try:
            from holdfast_hooks.progress.call_watch import touch_names

            touch_names()
        except (ImportError, AttributeError) as error:
            return str(error)
    return ""


class _CallFault(ABC):
    """A fault that watches calls from its strike until it has changed one."""

    def __init__(self, _: Fault, __: Site) -> None:
        from holdfast_hooks.progress.call_watch import CallWatch

        self._done = False
        self._watch = CallWatch(lambda call: call.run() if self._done else self._see(call))
        self._watch.start()

    def moment(self, step: int, phase: int) -> bool:  # noqa: ARG002 - the protocol of effects
        """Return True once it has changed a call and no longer watches."""
        return self._done and self._watch.stop()

    def end(self) -> None:
        """Change no call from now on."""
        self._done = True
        self._watch.stop()

    @abstractmethod
    def _see(self, call: "GroupCall") -> "CallResult":
        """Make a call, changed or not; return its result."""


class Skipped(_CallFault):
    """Skips one collective. The tensors keep what they held before."""

    def _see(self, call: "GroupCall") -> "CallResult":
        if not call.is_collective:
            return call.run()
        self._done = True
        return call.pretended()


class LostMessage(_CallFault):
    """Pretends to send one message."""

    def _see(self, call: "GroupCall") -> "CallResult":
        if call.name != "send":
            return call.run()
        self._done = True
        return call.pretended()


class Extra(_CallFault):
    """Makes one collective twice."""

    def _see(self, call: "GroupCall") -> "CallResult":
        if call.is_collective:
            self._done = True
            _wait(call.on(lambda tensor: tensor.clone()).run())
        return call.run()


class WrongShape(_CallFault):
    """Makes one collective with tensors that are longer by one element, or by one per rank if they hold all parts."""

    def _see(self, call: "GroupCall") -> "CallResult":
        lengths = [tensor.numel() for tensor in call.tensors()]
        if not call.is_collective or call.name == "barrier" or 0 in lengths:
            return call.run()
        self._done = True

        def longer(tensor: "torch.Tensor") -> "torch.Tensor":
            return tensor.new_zeros(tensor.numel() + tensor.numel() // min(lengths))

        result = call.on(longer).run()
        # The caller gets its own tensors back, and nothing is written to them.
        return (call.arguments[0], result[-1]) if isinstance(result, tuple) else result


class WrongOrder(_CallFault):
    """Swaps two collectives of two groups.

    Before a call of one group, it repeats the last call of another group. Then it skips the next call of that group.
    """

    def __init__(self, fault: Fault, site: Site) -> None:
        self._newest: dict[str, GroupCall] = {}
        self._early = ""
        super().__init__(fault, site)

    def _see(self, call: "GroupCall") -> "CallResult":
        if not call.is_collective:
            return call.run()
        if self._early:
            self._done = call.group == self._early
            return call.pretended() if self._done else call.run()
        self._early = next((group for group in self._newest if group != call.group), "")
        if self._early:
            _wait(self._newest[self._early].run())
        self._newest[call.group] = call.on(lambda tensor: tensor.clone())
        return call.run()


def _wait(result: "CallResult") -> None:
    from torch._C._distributed_c10d import Work

    Work.unbox(result[-1] if isinstance(result, tuple) else result).wait()
