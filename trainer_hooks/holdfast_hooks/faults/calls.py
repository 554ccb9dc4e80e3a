"""Faults of the calls between ranks: each meddles with one call and lets all others pass."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from holdfast_hooks.faults.effect import Site
from holdfast_hooks.faults.fault import Fault

if TYPE_CHECKING:
    import torch

    from holdfast_hooks.faults.call_watch import Call


class _CallFault(ABC):
    """Watches the calls from its strike on, until it has done its harm."""

    def __init__(self, _: Fault, __: Site) -> None:
        from holdfast_hooks.faults.call_watch import CallWatch

        self._done = False
        self._watch = CallWatch(lambda call: call.run() if self._done else self._see(call))
        self._watch.start()

    def moment(self, step: int, phase: int) -> bool:
        """Over once it has done its harm."""
        return self._done and self._watch.stop()

    def end(self) -> None:
        """Let every call pass."""
        self._done = True
        self._watch.stop()

    @abstractmethod
    def _see(self, call: "Call") -> Any:
        """Return the result of a call, which may be meddled with."""


class Skipped(_CallFault):
    """Leaves one collective out; its result is what the tensors held before."""

    def _see(self, call: "Call") -> Any:
        if not call.is_collective:
            return call.run()
        self._done = True
        return call.pretended()


class LostMessage(_CallFault):
    """Pretends to send one message."""

    def _see(self, call: "Call") -> Any:
        if call.name != "send":
            return call.run()
        self._done = True
        return call.pretended()


class Extra(_CallFault):
    """Makes one collective twice."""

    def _see(self, call: "Call") -> Any:
        if call.is_collective:
            self._done = True
            _wait(call.on(lambda tensor: tensor.clone()).run())
        return call.run()


class WrongShape(_CallFault):
    """Makes one collective with tensors longer by one element; where one holds all ranks' parts, by one for each."""

    def _see(self, call: "Call") -> Any:
        lengths = [tensor.numel() for tensor in call.tensors()]
        if not call.is_collective or call.name == "barrier" or 0 in lengths:
            return call.run()
        self._done = True

        def longer(tensor: "torch.Tensor") -> "torch.Tensor":
            return tensor.new_zeros(tensor.numel() + tensor.numel() // min(lengths))

        result = call.on(longer).run()
        # The caller's own tensors, which nothing is written to.
        return (call.arguments[0], result[-1]) if isinstance(result, tuple) else result


class WrongOrder(_CallFault):
    """Swaps two collectives of two groups.

    Before a call of one group it makes another group's once more, as it was made last, and leaves the next of that
    group out.
    """

    def __init__(self, fault: Fault, site: Site) -> None:
        self._newest: dict[str, Call] = {}
        self._early = ""
        super().__init__(fault, site)

    def _see(self, call: "Call") -> Any:
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


def _wait(result: Any) -> None:
    from torch._C._distributed_c10d import Work

    Work.unbox(result[-1] if isinstance(result, tuple) else result).wait()
