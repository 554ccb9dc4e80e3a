"""The times of single calls, worked out by hand from the formulas."""

from functools import partial

import pytest

from holdfast_trainer.config_sections import HardwareConfig
from holdfast_trainer.planning.hardware import GPUS, Cluster

# H100: NVLink 3,600 Gbit/s x 0.8 = 360 GB/s, network 400 Gbit/s x 0.8 = 40 GB/s for each GPU. A call begins with
# 8.4 us; a message takes 3.4 us within a node and 9.6 us between nodes.
CLUSTER = Cluster.of(GPUS["h100"], HardwareConfig())
GB = 1e9
close = partial(pytest.approx, rel=1e-9)


def test_a_ring_within_a_node_passes_its_parts_seven_times() -> None:
    group = CLUSTER.group(size=8, stride=1)
    # 8.4 us + 7 x 3.4 us + 7/8 x 1 GB / 360 GB/s
    assert group.duration_s("all-gather", GB) == close(32.2e-6 + 0.875 / 360)
    assert group.duration_s("reduce-scatter", GB) == group.duration_s("all-gather", GB)
    # An all-reduce does both: 8.4 us + 14 x 3.4 us + 2 x 7/8 x 1 GB / 360 GB/s
    assert group.all_reduce_s(GB)["ring"] == close(56.0e-6 + 1.75 / 360)
    # Seven steps up and seven down, and all data twice: 8.4 us + 14 x 3.4 us + 2 x 1 GB / (0.9 x 360 GB/s)
    assert group.all_reduce_s(GB)["tree"] == close(56.0e-6 + 2 / 324)


def test_a_ring_between_nodes_uses_the_adapters_of_all_gpus() -> None:
    group = CLUSTER.group(size=16, stride=1)
    # Two nodes: 8 x 40 GB/s = 320 GB/s. 14 of 15 steps stay within a node.
    assert group.duration_s("all-gather", GB) == close(8.4e-6 + 14 * 3.4e-6 + 9.6e-6 + 15 / 16 / 320)
    assert group.all_reduce_s(GB)["ring"] == close(8.4e-6 + 2 * (14 * 3.4e-6 + 9.6e-6) + 2 * 15 / 16 / 320)
    # One step between the two nodes, seven within each: 8.4 us + 2 x (7 x 3.4 us + 1 x 9.6 us) + 2 x 1 GB / (0.9 x 320)
    assert group.all_reduce_s(GB)["tree"] == close(8.4e-6 + 2 * (7 * 3.4e-6 + 9.6e-6) + 2 / 288)


def test_an_all_to_all_is_as_slow_as_the_network_adapter_of_one_gpu() -> None:
    group = CLUSTER.group(size=16, stride=1)
    # Each rank sends 1/16 GB to each of 8 ranks of the other node, over its own adapter: 0.5 GB / 40 GB/s.
    assert group.duration_s("all-to-all", GB) == close(8.4e-6 + 14 * 3.4e-6 + 9.6e-6 + 0.5 / 40)
    # Within a node: 7/8 GB / 360 GB/s.
    assert CLUSTER.group(size=8, stride=1).duration_s("all-to-all", GB) == close(32.2e-6 + 0.875 / 360)


def test_small_messages_between_many_nodes_take_the_tree() -> None:
    group = CLUSTER.group(size=1024, stride=1)  # 128 nodes
    times = group.all_reduce_s(1e3)
    # Ring: 8.4 us + 2 x (896 x 3.4 us + 127 x 9.6 us) = 8.540 ms
    assert times["ring"] == pytest.approx(8.54e-3, rel=1e-3)
    # Tree: 8.4 us + 2 x (7 x 3.4 us + 7 x 9.6 us) = 190.4 us
    assert times["tree"] == pytest.approx(190.4e-6, rel=1e-3)
    assert group.duration_s("all-reduce", 1e3) == times["tree"]
    assert group.duration_s("all-reduce", 100 * GB) == group.all_reduce_s(100 * GB)["ring"]


@pytest.mark.parametrize(("operation", "sent"), [("all-reduce", 1.5), ("all-gather", 0.75), ("all-to-all", 0.75)])
def test_a_rank_of_four_sends_three_quarters_or_twice_that(operation: str, sent: float) -> None:
    assert CLUSTER.group(size=4, stride=1).sent_bytes(operation, GB) == sent * GB  # type: ignore[arg-type]


def test_ranks_that_are_a_node_apart_have_one_adapter_each() -> None:
    group = CLUSTER.group(size=4, stride=8)
    assert (group.nodes, group.ring_bytes_per_s) == (4, 40e9)


def test_what_the_file_says_of_the_hardware_comes_before_the_preset() -> None:
    own = HardwareConfig(gpus_per_node=4, memory_gb=40, network_gbps=100, node_latency_us=1.0, peak_tflops=500)
    cluster = Cluster.of(GPUS["h100"], own)
    group = cluster.group(size=8, stride=1)
    assert (group.nodes, group.ring_bytes_per_s, group.node_latency_s) == (2, 4 * 10e9, 1e-6)
    assert (cluster.gpu.memory_bytes, cluster.gpu.node_gbps) == (40e9, 3600)
