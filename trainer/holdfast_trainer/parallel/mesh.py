"""The one owner of the device meshes: who this rank is in the layout, and with whom it shares what.

Ranks are numbered with pp outermost, then dp, cp and tp (neighbours talk most). Three views of them, each a
mesh of its own, since ``fully_shard`` wants all axes of a parameter in one mesh:

* ``dense``: (pp, dp_replicate, dp_shard, tp). Ranks that share a sequence (cp) share its weights as well, so cp is
  folded into the data-parallel axes: into dp_shard, or into dp_replicate where nothing is sharded.
* ``sequence``: (pp, dp, cp, tp), if cp > 1.
* ``experts``: (pp, expert_replicate, expert_shard, ep, tp), if ep > 1. ep is the inner part of dp_shard x cp, or of
  dp x cp where nothing is sharded.
"""

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from holdfast_trainer.config import ParallelConfig


@dataclass(frozen=True)
class Mesh:
    """The meshes of one layout, and this rank's place in it."""

    config: ParallelConfig
    dense: DeviceMesh
    """Of all parameters but those of experts."""
    sequence: DeviceMesh | None
    """Of the activations: who holds which samples, and which part of them."""
    experts: DeviceMesh | None
    """Of the parameters of experts."""

    @classmethod
    def create(cls, config: ParallelConfig, device_type: str) -> "Mesh":
        """Build the meshes and their process groups. All ranks must call it."""
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
        """Axis name -> this rank's index: pp, dp and tp, and of cp and ep those with more than one rank."""
        axes = ["pp", "dp", "tp", *(axis for axis in ("cp", "ep") if self.size(axis) > 1)]
        return {axis: self.index(axis) for axis in axes}

    @property
    def data_indices(self) -> dict[str, int]:
        """Which part of a batch is this rank's: of its samples (dp_index), and of each sample (cp_index)."""
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
        """The mesh for ``fully_shard``: of one axis, or of two where copies are kept (HSDP)."""
        return _data_axes(self.dense, "dp_replicate", "dp_shard")

    @property
    def fully_sharded_experts(self) -> DeviceMesh:
        """The same for the parameters of experts: what ep leaves of the data-parallel ranks."""
        assert self.experts is not None
        return _data_axes(self.experts, "expert_replicate", "expert_shard")

    @property
    def is_first_replica(self) -> bool:
        """Whether this rank is the first of those that hold the same stages."""
        return all(self.index(axis) == 0 for axis in ("dp", "cp", "tp"))


def _init(device_type: str, **sizes: int) -> DeviceMesh:
    return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _data_axes(mesh: DeviceMesh, replicate: str, shard: str) -> DeviceMesh:
    copies = mesh[replicate].size() > 1
    return mesh[replicate, shard] if copies else mesh[shard]
