"""GPUs and the links between them: presets, and what the file's [hardware] changes."""

from dataclasses import dataclass, replace

from holdfast_trainer import flops
from holdfast_trainer.config_sections import HardwareConfig, PrecisionConfig
from holdfast_trainer.planning.collectives import LINK_EFFICIENCY, LinkedRanks

_BITS = 8
_GBIT_BYTES = 1e9 / _BITS
_NVLINK_LATENCY_S, _PCIE_LATENCY_S, _NETWORK_LATENCY_S = 3.4e-6, 5.7e-6, 9.6e-6
"""Seconds for one message of a ring, by NCCL (``src/graph/tuning.cc`` at 01afd20a, protocol Simple)."""


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
    host_gbps: float
    """Rate to the host's memory over PCIe, in Gbit/s."""
    node_latency_s: float = _NVLINK_LATENCY_S


_PCIE_3, _PCIE_4, _PCIE_5 = 126, 252, 504
"""Gbit/s of 16 lanes in one direction: 8, 16 and 32 GT/s a lane, less the encoding (128 of 130 bits)."""

# Memory, its rate and NVLink (half of the figure for both directions) are from NVIDIA's data sheets of each GPU. With
# NVLink, networks are as in its DGX systems: one adapter for each GPU of 100 (DGX-2), 200 (A100) or 400 Gbit/s (H100,
# H200, B200). Those of the other cards are assumptions.
GPUS = {
    "b200": GpuKind("B200", 180e9, 8.0e12, node_gbps=7200, network_gbps=400, host_gbps=_PCIE_5),
    "h200": GpuKind("H200", 141e9, 4.8e12, node_gbps=3600, network_gbps=400, host_gbps=_PCIE_5),
    "h100": GpuKind("H100 80GB HBM3", 80e9, 3.35e12, node_gbps=3600, network_gbps=400, host_gbps=_PCIE_5),
    "h100-pcie": GpuKind(
        "H100 PCIe", 80e9, 2.0e12, node_gbps=_PCIE_5, network_gbps=200, host_gbps=_PCIE_5,
        node_latency_s=_PCIE_LATENCY_S,
    ),
    "a100": GpuKind("A100-SXM4-80GB", 80e9, 2.0e12, node_gbps=2400, network_gbps=200, host_gbps=_PCIE_4),
    "a100-40gb": GpuKind("A100-SXM4-40GB", 40e9, 1.55e12, node_gbps=2400, network_gbps=200, host_gbps=_PCIE_4),
    "a100-pcie": GpuKind(
        "A100 80GB PCIe", 80e9, 1.935e12, node_gbps=_PCIE_4, network_gbps=100, host_gbps=_PCIE_4,
        node_latency_s=_PCIE_LATENCY_S,
    ),
    "v100": GpuKind("Tesla V100-SXM2-32GB", 32e9, 0.9e12, node_gbps=1200, network_gbps=100, host_gbps=_PCIE_3),
    "l40s": GpuKind(
        "L40S", 48e9, 0.864e12, node_gbps=_PCIE_4, network_gbps=100, host_gbps=_PCIE_4,
        node_latency_s=_PCIE_LATENCY_S,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """GPUs of one kind, ``gpus_per_node`` in each machine. Ranks fill one node after the other."""

    gpu: GpuKind
    gpus_per_node: int
    peak_tflops: float = 0.0
    """Dense 10^12 operations per second in the data type of the computation. 0: that of the kind."""
    network_latency_s: float = _NETWORK_LATENCY_S
    host_memory_bytes_per_s: float = 50e9
    """Rate of the host's memory, for each GPU of the node."""

    @classmethod
    def of(cls, kind: GpuKind, own: HardwareConfig) -> "Cluster":
        """Return a cluster of GPUs of ``kind``, with what ``own`` says of them instead."""
        changes: dict[str, float] = {
            "memory_bytes": own.memory_gb * 1e9,
            "memory_bytes_per_s": own.memory_gb_per_s * 1e9,
            "node_gbps": own.node_gbps,
            "network_gbps": own.network_gbps,
            "host_gbps": own.host_gbps,
            "node_latency_s": own.node_latency_us * 1e-6,
        }
        given = {field: value for field, value in changes.items() if value}
        return cls(
            replace(kind, **given),  # type: ignore[arg-type]
            own.gpus_per_node,
            own.peak_tflops,
            own.network_latency_us * 1e-6 or _NETWORK_LATENCY_S,
            own.host_memory_gb_per_s * 1e9,
        )

    def peak_flops_per_s(self, precision: PrecisionConfig) -> float:
        """Return one GPU's peak in the data type of the blocks' products. Raises ValueError if it has no such unit."""
        peak = self.peak_tflops * 1e12 or flops.peak_flops_per_s(self.gpu.device_name, precision)
        if peak is None:
            raise ValueError(
                f"{self.gpu.device_name} does not compute in {'fp8' if precision.fp8 else precision.compute}"
            )
        return peak

    @property
    def host_bytes_per_s(self) -> float:
        """Rate of large copies between a GPU and its host."""
        return self.gpu.host_gbps * _GBIT_BYTES * LINK_EFFICIENCY

    def group(self, *, size: int, stride: int) -> LinkedRanks:
        """Return ``size`` ranks, ``stride`` ranks apart, as a group that communicates.

        Across nodes, a ring uses the network adapters of all members within a node, as NCCL's rings do.
        """
        is_inside = size * stride <= self.gpus_per_node
        members_in_node = size if is_inside else max(1, self.gpus_per_node // stride)
        node_rate = self.gpu.node_gbps * _GBIT_BYTES * LINK_EFFICIENCY
        network_rate = self.gpu.network_gbps * _GBIT_BYTES * LINK_EFFICIENCY
        return LinkedRanks(
            ranks=size,
            nodes=1 if is_inside else -(-size // members_in_node),
            node_bytes_per_s=node_rate,
            network_bytes_per_s=network_rate,
            ring_bytes_per_s=node_rate if is_inside else min(node_rate, network_rate * members_in_node),
            node_latency_s=self.gpu.node_latency_s,
            network_latency_s=self.network_latency_s,
        )
