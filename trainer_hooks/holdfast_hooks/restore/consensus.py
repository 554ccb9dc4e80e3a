"""Yes-or-no questions to all ranks of the world."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast_hooks.identity import Identity
from holdfast_hooks.state.encoding import Image

if TYPE_CHECKING:
    import torch


def anywhere(
    answers: Sequence[bool], live: Image, group: "torch.distributed.ProcessGroup | None" = None
) -> list[bool] | None:
    """Return for each of this rank's answers whether any rank answers yes; None if ranks cannot be asked.

    This is one collective of ``group``, by default of all ranks. So each of them must ask the same questions at the
    same time. It runs on the device of ``live``, this rank's state. Without a process group, a world of one answers for
    itself.
    """
    torch = sys.modules.get("torch")
    if torch is None or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return list(answers) if Identity.from_environment().world_size == 1 else None
    said = torch.tensor(answers, dtype=torch.int32, device=_device_of(live))
    torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX, group=group)
    return [bool(answer) for answer in said.tolist()]


def everywhere(answer: bool, live: Image, group: "torch.distributed.ProcessGroup | None" = None) -> bool:
    """Return whether all ranks of ``group`` answer yes; if they cannot be asked, this rank's answer."""
    doubts = anywhere([not answer], live, group)
    return answer if doubts is None else not doubts[0]


def _device_of(live: Image) -> "torch.device | str":
    """Return the device on which the process group can reduce: the state's, not the host memory of optimizers."""
    devices = [part.local.device for part in live.parts]
    return next((device for device in devices if device.type != "cpu"), "cpu")
