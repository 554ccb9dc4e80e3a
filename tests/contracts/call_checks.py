"""How torch's operators and dispatch modes must behave for the faults of calls and for the trainer."""

import importlib
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C import ScriptObject
from torch._C._distributed_c10d import FakeWork, ProcessGroup, Work
from torch._ops import OpOverload
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    is_in_any_mode_without_ignore_compile_internals,
)


class Seen(TorchDispatchMode):
    """Remembers the operators of process groups, as the hooks' watch does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "_c10d_functional":
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs or {})
        if func.namespace == "c10d":
            self.calls.append((func, args))
        return func(*args, **kwargs or {})


def mode() -> None:
    seen = Seen()
    seen.__enter__()  # type: ignore[no-untyped-call]
    assert _get_current_dispatch_mode() is seen
    seen.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    assert _get_current_dispatch_mode() is None


def compiled_graphs() -> None:
    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

    assert not TorchDispatchMode.ignore_compile_internals()
    with Watch():  # type: ignore[no-untyped-call]
        assert not is_in_any_mode_without_ignore_compile_internals()


def results_on_their_way() -> None:
    found = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    assert type(found) is functional.AsyncCollectiveTensor
    assert (found + 1).tolist() == [2.0, 2.0]  # which waits


def operator() -> None:
    [(called, _)] = _calls_of_an_all_reduce()
    assert isinstance(called, OpOverload)
    assert called._schema.name == "c10d::allreduce_"
    assert len(called._schema.returns) == 2


def group_of_a_call() -> None:
    [(_, arguments)] = _calls_of_an_all_reduce()
    boxed = next(argument for argument in arguments if isinstance(argument, ScriptObject))
    assert ProcessGroup.unbox(boxed).group_name == dist.group.WORLD.group_name  # type: ignore[union-attr]


def _calls_of_an_all_reduce() -> list[tuple[Any, tuple[Any, ...]]]:
    with Seen() as seen:
        dist.all_reduce(torch.ones(2))
    calls: list[tuple[Any, tuple[Any, ...]]] = seen.calls
    return calls


def pretended_work() -> None:
    boxed = FakeWork().boxed()
    assert isinstance(boxed, ScriptObject)
    Work.unbox(boxed).wait()


def functional_collective_under_a_mode() -> None:
    """A functional collective ends in an operator of c10d, if its kernel is called by this dispatch key."""
    operators = torch.ops._c10d_functional
    assert isinstance(operators.reduce_scatter_tensor.default, OpOverload)
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    with Seen() as seen:
        result = operators.wait_tensor(operators.all_reduce(torch.full((2,), 3.0), "sum", name))
    assert result.tolist() == [3.0, 3.0]
    assert [called._schema.name for called, _ in seen.calls] == ["c10d::allreduce_"]


def dynamo() -> None:
    importlib.import_module("torch._dynamo")
