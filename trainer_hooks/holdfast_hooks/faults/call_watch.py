"""Sees every collective and every message of the training thread just before it goes to its process group.

torch's own functions, DDP's reducer, ``fully_shard``, DTensor's redistributions and the functional collectives all
end in an operator of the library ``c10d``, in the backward pass as well, and a dispatch mode sees operators. Work
that torch runs on threads without a mode of their own, such as a background save, is not seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import DispatchKey, ScriptObject
from torch._C._distributed_c10d import FakeWork, ProcessGroup
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

_MESSAGES = frozenset(("send", "recv_", "recv_any_source_"))


@dataclass(frozen=True)
class Call:
    """One call of a process group that has not happened yet."""

    operator: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    @property
    def name(self) -> str:
        """As c10d calls it, e.g. ``allreduce_``."""
        return str(self.operator._schema.name).removeprefix("c10d::")

    @property
    def is_collective(self) -> bool:
        """Whether it is one, and no message from one rank to another."""
        return self.name not in _MESSAGES

    @property
    def group(self) -> str:
        """Name of the process group."""
        objects = (argument for argument in self.arguments if isinstance(argument, ScriptObject))
        return str(ProcessGroup.unbox(next(objects)).group_name)

    def run(self) -> Any:
        """Let it happen."""
        return self.operator(*self.arguments, **self.keywords)

    def on(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Call":
        """Return the same call on other tensors."""
        return Call(self.operator, tuple(_changed(argument, change) for argument in self.arguments), self.keywords)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors that it reads or writes."""
        found: list[torch.Tensor] = []
        self.on(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found

    def pretended(self) -> Any:
        """Return what the call returns, as if it had happened: outputs stay what they are."""
        done = FakeWork().boxed()
        # Operators of c10d return their outputs, which come first among the arguments, and the work; or that alone.
        return done if len(self.operator._schema.returns) == 1 else (self.arguments[0], done)


class CallWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives every call to ``meddle``, which returns its result. Training thread only."""

    def __init__(self, meddle: Callable[[Call], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._meddle = meddle

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Let everything else pass."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it takes itself apart, and its calls come by here again
        match getattr(func, "namespace", ""):
            case "_c10d_functional":
                with self:  # its kernel calls the operator of c10d
                    return func._op_dk(DispatchKey.CompositeExplicitAutograd, *args, **kwargs or {})
            case "c10d":
                return self._meddle(Call(func, args, kwargs or {}))
        return func(*args, **kwargs or {})

    def start(self) -> None:
        """Begin to watch."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> bool:
        """Watch no more; False if that must wait, because the training thread is within another mode."""
        is_innermost = _get_current_dispatch_mode() is self
        if is_innermost:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return is_innermost


def _changed(argument: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(argument, torch.Tensor):
        return change(argument)
    if isinstance(argument, (list, tuple)):
        return [_changed(item, change) for item in argument]
    return argument
