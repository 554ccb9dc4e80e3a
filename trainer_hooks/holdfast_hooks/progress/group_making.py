"""Sees process groups while torch makes them.

A rank may hang there: its members look for each other in the store. Until it returns, no recorder knows the group.

The functions that make groups are wrapped. To look for them in the frames of other threads instead is not safe: those
threads go on between two looks, and in Python 3.11 ``f_back`` then may lead to memory that has other contents already.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1.common_pb2 import GroupProgress

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_MODULE = "torch.distributed.distributed_c10d"
_NAMED = "_new_process_group_helper"
"""Function that knows the name and the members of the group that it makes."""

MAKERS = (_NAMED, "split_group", "shrink_group")
"""Functions of ``_MODULE`` in which groups are made. All of torch calls the first one by its name in that module."""

_making: dict[object, GroupProgress | None] = {}
"""A key for each such call that has not returned -> the group; None: its name is not known, or it is of others."""


def watch_makers() -> None:
    """Wrap the functions that make groups, once torch has them. Modules that have imported one get the wrapper, too."""
    module = sys.modules.get(_MODULE)
    for name in MAKERS if module is not None else ():
        original = vars(module).get(name)
        if original is None or hasattr(original, "holdfast_watches"):
            continue
        wrapper = _watched(original)
        # What stands in for a module may load things, or fail, when it is asked for an attribute.
        for other in [one for one in list(sys.modules.values()) if issubclass(type(one), ModuleType)]:
            names = object.__getattribute__(other, "__dict__")
            if names.get(name) is original:
                names[name] = wrapper


def is_making_groups() -> bool:
    """Return whether a thread of this process is in a function that makes a group."""
    return bool(_making)


def groups_being_made() -> list[GroupProgress]:
    """Return the groups of this rank that threads are making now, without calls; none for the world's, the first."""
    return [group for group in list(_making.values()) if group is not None]


def _watched(make: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    @functools.wraps(make)
    def watched(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        key = object()
        _making[key] = _group_of(make, args, kwargs)
        try:
            return make(*args, **kwargs)
        finally:
            _making.pop(key, None)

    watched.holdfast_watches = True  # type: ignore[attr-defined]
    return watched


def _group_of(make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> GroupProgress | None:
    with suppress(TypeError, ValueError, AttributeError):  # arguments of some other kind
        given = inspect.signature(make).bind_partial(*args, **kwargs).arguments if make.__name__ == _NAMED else {}
        name, members = given.get("group_name"), given.get("global_ranks_in_group")
        if isinstance(name, str) and members and given.get("group_rank") is not None:  # None: it is no member
            return GroupProgress(
                group=name, member_runs=runs_of(sorted(members)), description=given.get("group_desc") or ""
            )
    return None
