"""GPUs and the links between them."""

from dataclasses import dataclass

from holdfast_trainer import flops
from holdfast_trainer.config_sections import PrecisionConfig

_BITS = 8


@dataclass(frozen=True)
class GpuKind:
    """One kind of GPU, and the links of a usual machine with it. Rates are those of one direction."""

    device_name: str
    """Name as torch.cuda.get_device_name returns it."""
    memory_bytes: float
    memory_bytes_per_s: float
    node_gbps: float
    """Rate to the other GPUs of a node, in Gbit/s: NVLink, or PCIe on machines without it."""
    network_gbps: float
    """Rate to other nodes, in Gbit/s for each GPU."""


# Memory and NVLink (half of the figure for both directions) from NVIDIA's data sheets; networks as in DGX systems.
GPUS = {
    "b200": GpuKind("B200", 180e9, 8.0e12, node_gbps=7200, network_gbps=400),
    "h200": GpuKind("H200", 141e9, 4.8e12, node_gbps=3600, network_gbps=400),
    "h100": GpuKind("H100 80GB HBM3", 80e9, 3.35e12, node_gbps=3600, network_gbps=400),
    "a100": GpuKind("A100-SXM4-80GB", 80e9, 2.0e12, node_gbps=2400, network_gbps=200),
    "a100-40gb": GpuKind("A100-SXM4-40GB", 40e9, 1.55e12, node_gbps=2400, network_gbps=200),
    "v100": GpuKind("Tesla V100-SXM2-32GB", 32e9, 0.9e12, node_gbps=1200, network_gbps=100),
    "l40s": GpuKind("L40S", 48e9, 0.864e12, node_gbps=256, network_gbps=100),
}


@dataclass(frozen=True)
class Cluster:
    """GPUs of one kind, ``gpus_per_node`` in each machine. Ranks fill one node after the other."""

    gpu: GpuKind
    gpus_per_node: int
    node_gbps: float
    network_gbps: float

    def peak_flops_per_s(self, precision: PrecisionConfig) -> float:
        """Return one GPU's peak in the data type of the blocks' products. Raises ValueError if it has no such unit."""
        peak = flops.peak_flops_per_s(self.gpu.device_name, precision)
        if peak is None:
            raise ValueError(
                f"{self.gpu.device_name} does not compute in {'fp8' if precision.fp8 else precision.compute}"
            )
        return peak

    def group_bytes_per_s(self, *, size: int, stride: int) -> float:
        """Return the rate at which ``size`` ranks, ``stride`` ranks apart, pass data around their ring.

        Across nodes, the members within one node use the network adapters of all of them, as NCCL's rings do.
        """
        if size * stride <= self.gpus_per_node:
            return self.node_gbps * 1e9 / _BITS
        members_in_node = max(1, self.gpus_per_node // stride)
        return min(self.node_gbps, self.network_gbps * members_in_node) * 1e9 / _BITS
