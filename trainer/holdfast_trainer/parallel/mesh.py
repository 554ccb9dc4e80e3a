"""The device meshes: the place of this rank in the layout, and the ranks with which it shares state or data.

Ranks are numbered with pp outermost, then dp, cp and tp, because neighbours communicate most. There are three meshes of
them, because ``fully_shard`` needs all axes of a parameter in one mesh:

* ``dense``: (pp, dp_replicate, dp_shard, tp). Ranks that share a sequence (cp) use the same weights. So cp is part of
  the data-parallel axes: of dp_shard, or of dp_replicate where nothing is sharded.
* ``sequence``: (pp, dp, cp, tp), if cp > 1.
* ``experts``: (pp, expert_replicate, expert_shard, ep, tp), if ep > 1. ep is the inner part of dp_shard x cp, or of
  dp x cp where nothing is sharded.
"""

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from holdfast_trainer.config_sections import ParallelConfig


@dataclass(frozen=True)
class Mesh:
    """The meshes of one layout, and this rank's place in it."""

    config: ParallelConfig
    dense: DeviceMesh
    """Mesh of all parameters except those of experts."""
    sequence: DeviceMesh | None
    """Mesh of the activations: which samples, and which part of them, a rank has."""
    experts: DeviceMesh | None
    """Mesh of the parameters of experts."""

    @classmethod
    def create(cls, config: ParallelConfig, device_type: str) -> "Mesh":
        """Return the meshes, with new process groups. All ranks must call it."""
        data_ranks = config.dp * config.cp
        shards = 1 if config.zero == 0 else config.shards * config.cp
        expert_shards = 1 if config.zero == 0 else shards // config.ep
        dense = {"pp": config.pp, "dp_replicate": data_ranks // shards, "dp_shard": shards, "tp": config.tp}
        sequence = {"pp": config.pp, "dp": config.dp, "cp": config.cp, "tp": config.tp}
        experts = {
            "pp": config.pp,
            "expert_replicate": data_ranks // (expert_shards * config.ep),
            "expert_shard": expert_shards,
            "ep": config.ep,
            "tp": config.tp,
        }
        return cls(
            config,
            dense=_init(device_type, **dense),
            sequence=_init(device_type, **sequence) if config.cp > 1 else None,
            experts=_init(device_type, **experts) if config.ep > 1 else None,
        )

    @property
    def coordinates(self) -> dict[str, int]:
        """Axis name -> this rank's index, for pp, dp and tp, and for cp and ep if they have more than one rank."""
        axes = ["pp", "dp", "tp", *(axis for axis in ("cp", "ep") if self.size(axis) > 1)]
        return {axis: self.index(axis) for axis in axes}

    @property
    def data_indices(self) -> dict[str, int]:
        """This rank's part of a batch: its index among the shares of samples (dp), and within each sample (cp)."""
        return {"dp_index": self.index("dp"), "cp_index": self.index("cp")}

    def size(self, axis: str) -> int:
        """Return the number of ranks along ``axis``: pp, dp, cp, tp or ep."""
        size: int = getattr(self.config, axis)
        return size

    def index(self, axis: str) -> int:
        """Return this rank's index along ``axis``: pp, dp, cp, tp or ep."""
        above_tp, tp = divmod(dist.get_rank(), self.config.tp)
        above_cp, cp = divmod(above_tp, self.config.cp)
        pp, dp = divmod(above_cp, self.config.dp)
        return {"pp": pp, "dp": dp, "cp": cp, "tp": tp, "ep": above_tp % self.config.ep}[axis]

    def axis(self, axis: str) -> DeviceMesh:
        """Return the one-dimensional mesh of the ranks that differ from this one in ``axis`` alone.

        ``axis`` is pp, dp_replicate, dp_shard or tp, or cp or ep where these have more than one rank.
        """
        view = {"cp": self.sequence, "ep": self.experts}.get(axis, self.dense)
        assert view is not None, f"{axis} has one rank"
        return view[axis]

    def group(self, axis: str) -> dist.ProcessGroup:
        """Return the process group of :meth:`axis`."""
        return self.axis(axis).get_group()

    @property
    def fully_sharded(self) -> DeviceMesh:
        """The mesh for ``fully_shard``. It has one axis, or two if there are copies of the state (HSDP)."""
        return _data_axes(self.dense, "dp_replicate", "dp_shard")

    @property
    def fully_sharded_experts(self) -> DeviceMesh:
        """The mesh for ``fully_shard`` of experts: the data-parallel ranks that hold the same experts."""
        assert self.experts is not None
        return _data_axes(self.experts, "expert_replicate", "expert_shard")

    @property
    def is_first_replica(self) -> bool:
        """Whether this rank is the first of the ranks that hold the same stages."""
        return all(self.index(axis) == 0 for axis in ("dp", "cp", "tp"))


def _init(device_type: str, **sizes: int) -> DeviceMesh:
    return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _data_axes(mesh: DeviceMesh, replicate: str, shard: str) -> DeviceMesh:
    copies = mesh[replicate].size() > 1
    return mesh[replicate, shard] if copies else mesh[shard]
