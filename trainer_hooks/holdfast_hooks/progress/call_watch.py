"""Intercepts every collective and every message of the training thread just before it goes to its process group.

Torch's own functions, DDP's reducer, ``fully_shard``, DTensor's redistributions and the functional collectives all
end in an operator of the library ``c10d``, in the backward pass too, and a dispatch mode sees operators. It does not
see work on threads without a mode of their own, such as a background save.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._C import DispatchKey, ScriptObject
from torch._C._distributed_c10d import FakeWork, ProcessGroup, Work
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

if TYPE_CHECKING:
    from torch._ops import OpOverload

CallResult: TypeAlias = "ScriptObject | tuple[object, ScriptObject]"
"""What operators of c10d return: the work, or their outputs and the work."""

_MESSAGES = frozenset(("send", "recv_", "recv_any_source_"))


@dataclass(frozen=True)
class GroupCall:
    """One call of a process group, before it is made."""

    operator: "OpOverload[..., CallResult]"
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    @property
    def name(self) -> str:
        """Name in c10d, such as ``allreduce_``."""
        return str(self.operator._schema.name).removeprefix("c10d::")

    @property
    def is_collective(self) -> bool:
        """Whether it is a collective, and not a message from one rank to another."""
        return self.name not in _MESSAGES

    @property
    def group(self) -> str:
        """Name of the process group."""
        return str(self.process_group.group_name)

    @property
    def process_group(self) -> ProcessGroup:
        """The process group itself."""
        objects = (argument for argument in self.arguments if isinstance(argument, ScriptObject))
        return ProcessGroup.unbox(next(objects))

    def arguments_by_name(self) -> dict[str, Any]:
        """Return the positional arguments by the names that c10d gives them."""
        names = (argument.name for argument in self.operator._schema.arguments)
        return dict(zip(names, self.arguments, strict=False))

    def run(self) -> CallResult:
        """Make the call; return its result."""
        return self.operator(*self.arguments, **self.keywords)

    def on(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "GroupCall":
        """Return the same call on other tensors."""
        return GroupCall(self.operator, tuple(_changed(argument, change) for argument in self.arguments), self.keywords)

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors that the call reads or writes."""
        return tensors_of(self.arguments)

    def pretended(self) -> CallResult:
        """Return a result as if the call had been made. Its outputs keep their contents."""
        done = FakeWork().boxed()
        # Outputs are the first argument.
        return done if len(self.operator._schema.returns) == 1 else (self.arguments[0], done)


class CallWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every call to ``meddle`` and returns what that returns. Training thread only."""

    def __init__(self, meddle: Callable[[GroupCall], CallResult]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._meddle = meddle

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave the graphs of torch.compile compiled. They would else run eagerly, with other bits."""
        return True

    def __torch_dispatch__(
        self,
        func: "OpOverload[..., Any]",
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Pass calls of process groups to ``meddle``, and run every other operator as it is."""
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented  # these call operators on plain tensors next, which come here again
        match getattr(func, "namespace", ""):
            case "_c10d_functional":
                with self:  # its kernel calls the operator of c10d
                    return func._op_dk(DispatchKey.CompositeExplicitAutograd, *args, **kwargs or {})
            case "c10d":
                return self._meddle(GroupCall(func, args, kwargs or {}))
        return func(*args, **kwargs or {})

    def start(self) -> None:
        """Start to watch."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> bool:
        """Stop to watch; return False if that must wait, because the training thread is inside another mode."""
        is_innermost = _get_current_dispatch_mode() is self
        if is_innermost:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return is_innermost


def can_watch_compiled() -> bool:
    """Whether this torch leaves the graphs of torch.compile compiled under a mode that asks for it, as 2.13 does."""
    return hasattr(TorchDispatchMode, "ignore_compile_internals")


def touch_names() -> None:
    """Raise AttributeError if torch lacks a private name that this file uses. To import the file finds the others."""
    operator = torch.ops.aten.mm.default
    _ = operator._schema.name, operator._schema.returns, operator._op_dk, DispatchKey.CompositeExplicitAutograd
    _ = ProcessGroup.unbox, FakeWork.boxed, Work.unbox


def tensors_of(argument: object) -> list[torch.Tensor]:
    """Return the tensors in an argument: a tensor, or lists of tensors."""
    found: list[torch.Tensor] = []
    _changed(argument, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def _changed(argument: object, change: Callable[[torch.Tensor], torch.Tensor]) -> object:
    if isinstance(argument, torch.Tensor):
        return change(argument)
    if isinstance(argument, (list, tuple)):
        return [_changed(item, change) for item in argument]
    return argument
