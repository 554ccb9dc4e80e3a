"""Sees the calls of process groups that Python makes, and finds out whether there were others.

torch's functions, FSDP and the pipeline schedules call methods of ``ProcessGroup``, which are wrapped while the hooks
are attached. C++ code calls them without Python: DistributedDataParallel's reducer, compiled code, functional
collectives. The group counts its collectives, so that these show as numbers that no call seen here has used up.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from holdfast_hooks.hook_errors import OnceLog

COLLECTIVES = (
    *("broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "_allgather_base", "allgather_coalesced"),
    *("allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base", "alltoall"),
    *("reduce_scatter_tensor_coalesced", "alltoall_base", "barrier"),
    # The names since torch 2.13.
    *("all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    "all_to_all_single",
)
MESSAGES = ("send", "recv", "recv_anysource", "_start_coalescing")
"""Calls whose end on the GPU cannot be seen."""
MOST_GROUPS = 64
"""Groups whose counters are read at the end of each step."""


class CallListener(Protocol):
    """What follows the calls with other ranks. Training thread and autograd's threads."""

    def call_begins(self) -> None:
        """Note that the GPU may wait for other ranks from here on."""

    def call_returns(self, *, is_over: bool) -> None:
        """Note that a call returns. ``is_over``: the current stream continues when the other ranks have joined."""

    def cannot_tell(self, why: str) -> None:
        """Note that the time of this step cannot be separated."""


class GroupCalls:
    """Wraps the calls, and tells a listener of them."""

    def __init__(self, listener: CallListener, once: OnceLog) -> None:
        self._listener = listener
        self._once = once
        self._patches: list[tuple[Any, str, Any, Any]] = []
        self._closed = False
        self._seen: dict[str, int] = {}
        """Group -> collectives that were seen here in this step."""
        self._counts: dict[str, int] = {}
        """Group -> its counter at the end of the step before."""
        self._training_thread = 0

    def install(self) -> None:
        """Wrap the calls if torch.distributed is imported and they are not wrapped yet."""
        distributed = sys.modules.get("torch.distributed")
        if self._patches or self._closed or distributed is None or not distributed.is_available():
            return
        self._training_thread = threading.get_ident()
        try:
            kind = distributed.ProcessGroup
            for name in (*COLLECTIVES, *MESSAGES):
                if name in vars(kind):
                    make = self._collective if name in COLLECTIVES else self._message
                    self._patch(kind, name, make(getattr(kind, name)))
            graph = sys.modules["torch"].cuda.CUDAGraph
            self._patch(graph, "replay", self._replay(graph.replay))
        except (AttributeError, TypeError, KeyError) as error:
            self._once.warn("the own time on the GPU is not measured", error)
            self.uninstall()

    def uninstall(self) -> None:
        """Put the original calls back. If another library has wrapped ours, it stays, and ours only passes calls on."""
        self._closed = True
        for owner, name, original, wrapper in reversed(self._patches):
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)
        self._patches = []

    def unseen(self) -> dict[str, int]:
        """Return, per group, how many collectives no call seen here has made since the last call of this."""
        counts = dict(self._read_counts())
        seen, self._seen = self._seen, {}
        before, self._counts = self._counts, counts
        made = {name: count - before.get(name, 0) - seen.get(name, 0) for name, count in counts.items()}
        return {name: number for name, number in made.items() if number > 0}

    def _read_counts(self) -> Iterator[tuple[str, int]]:
        module = sys.modules.get("torch.distributed.distributed_c10d")
        groups = [] if module is None else list(module._world.pg_map)
        if len(groups) > MOST_GROUPS:
            self._listener.cannot_tell(f"it has more than {MOST_GROUPS} process groups")
            return
        for group in groups:
            with suppress(RuntimeError, AttributeError):  # a group without a communicator of this rank
                yield group.group_name, group._get_sequence_number_for_group()

    def _is_training(self) -> bool:
        """Whether this is the training thread, or one of autograd's, which Python has not started.

        Calls of other threads, such as a background save, do not make the training thread's stream wait.
        """
        is_own = threading.get_ident() == self._training_thread
        return is_own or threading.current_thread().name.startswith("Dummy-")

    def _patch(self, owner: Any, name: str, wrapper: Any) -> None:  # noqa: ANN401 - classes of torch
        self._patches.append((owner, name, vars(owner)[name], wrapper))
        setattr(owner, name, wrapper)

    def _collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any, **keywords: Any) -> object:  # noqa: ANN401 - torch's ProcessGroup
            if self._closed:
                return original(group, *arguments, **keywords)
            before, is_training = _count(group), self._is_training()
            if is_training:
                if _is_async(arguments, keywords):
                    self._listener.cannot_tell("it makes asynchronous calls, whose ends cannot be seen")
                self._listener.call_begins()
            work = original(group, *arguments, **keywords)
            if is_training:
                # Without a Work there is nothing to wait for: the backend has made the current stream wait.
                self._listener.call_returns(is_over=work is None)
            if before is not None and (after := _count(group)) is not None:
                name = group.group_name
                self._seen[name] = self._seen.get(name, 0) + after - before
            return work

        return call

    def _message(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any, **keywords: Any) -> object:  # noqa: ANN401 - torch's ProcessGroup
            if not self._closed and self._is_training():
                self._listener.cannot_tell("it sends messages between ranks, whose ends cannot be seen")
            return original(group, *arguments, **keywords)

        return call

    def _replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replay(graph: Any, *arguments: Any, **keywords: Any) -> object:  # noqa: ANN401 - torch's CUDAGraph
            if not self._closed:
                self._listener.cannot_tell("it replays a CUDA graph, whose calls cannot be seen")
            return original(graph, *arguments, **keywords)

        return replay


def _count(group: Any) -> int | None:  # noqa: ANN401 - torch's ProcessGroup
    try:
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError, TypeError):  # nothing of ours may fail a call of the training loop
        return None


def _is_async(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether the caller gets a Work to wait for. The options are the last argument; without any, that is so."""
    options = keywords.get("opts", arguments[-1] if arguments else None)
    return bool(getattr(options, "asyncOp", True))
