"""The one owner of the device mesh: who this rank is in the layout, and with whom it shares what."""

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from holdfast_trainer.config import ParallelConfig

_AXES = ("pp", "dp", "tp")


@dataclass(frozen=True)
class Mesh:
    """The axes pp (outermost), dp and tp (innermost: neighbours talk most)."""

    devices: DeviceMesh

    @classmethod
    def create(cls, config: ParallelConfig, device_type: str) -> "Mesh":
        """Build the mesh and its process groups. All ranks must call it."""
        return cls(init_device_mesh(device_type, (config.pp, config.dp, config.tp), mesh_dim_names=_AXES))

    @property
    def coordinates(self) -> dict[str, int]:
        """Axis name -> this rank's index."""
        return {axis: self.index(axis) for axis in _AXES}

    def axis(self, axis: str) -> DeviceMesh:
        """Return the one-dimensional mesh of the ranks that differ from this one in ``axis`` alone."""
        return self.devices[axis]

    def group(self, axis: str) -> dist.ProcessGroup:
        """Return the process group of :meth:`axis`."""
        return self.devices.get_group(axis)

    def index(self, axis: str) -> int:
        """Return this rank's index along ``axis``."""
        return self.devices.get_local_rank(axis)

    def size(self, axis: str) -> int:
        """Return the number of ranks along ``axis``."""
        return self.devices.size(_AXES.index(axis))

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank holds the embedding."""
        return self.index("pp") == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank holds the head, and so knows the loss."""
        return self.index("pp") == self.size("pp") - 1

    @property
    def is_reporter(self) -> bool:
        """Whether this rank is the one that reports what is true of the whole step."""
        return self.is_last_stage and self.index("dp") == 0 and self.index("tp") == 0
