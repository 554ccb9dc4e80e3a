"""Time, price, failures, offload and more GPUs: expected numbers are worked out by hand from the formulas."""

import math
from typing import Any

import pytest

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import HardwareConfig
from holdfast_trainer.planning.formulas import explaining
from holdfast_trainer.planning.hardware import GPUS, Cluster
from holdfast_trainer.planning.pipeline_schedule import efficiencies, microbatches_for
from holdfast_trainer.planning.plan import Plan, make_plan, pipeline_places
from holdfast_trainer.planning.settings import load_layout
from holdfast_trainer.planning.whole_run import failures, scaling, whole_run


def planned(preset: str, *flags: str, gpu: str = "h100", **hardware: Any) -> tuple[Plan, Cluster]:
    config, _ = load_layout(None, preset, flags)
    own = HardwareConfig(**hardware)
    cluster = Cluster.of(GPUS[gpu], own)
    return make_plan(config.model_copy(update={"hardware": own}), cluster, pipeline_places(config)), cluster


def test_seventy_billion_gradients_on_256_gpus_at_100_gbit() -> None:
    plan, _ = planned("70b", "--parallel.dp", "256", "--parallel.zero", "0", network_gbps=100)
    (traffic,) = plan.traffic
    # 68.98 billion fp32 gradients are 276 GB. A rank sends 2 x 255/256 of them: 550 GB.
    assert traffic.sent_bytes == pytest.approx(2 * 255 / 256 * 4 * 68.98e9, rel=1e-3)
    # A node's 8 adapters of 12.5 GB/s carry 80 %: 80 GB/s, so 6.87 s. Each of 81 calls, for 80 blocks and the rest, has
    # 8.4 us + 2 x (224 x 3.4 us + 31 x 9.6 us) = 2.13 ms of latency.
    assert traffic.calls == 81
    assert traffic.duration_s == pytest.approx(traffic.sent_bytes / 80e9 + 81 * 2.127e-3, rel=1e-3)


def test_tokens_take_six_operations_for_each_parameter_and_those_of_attention() -> None:
    plan, cluster = planned("7b", "--parallel.dp", "8", gpu_hour_price=2.0)
    run = whole_run(plan, cluster, tokens=1e12, goodput=0.5)
    # N without the embedding: 6.738e9 - 32000 x 4096 = 6.607e9. Attention: 12 x 32 layers x 4096 wide x 4096 tokens.
    per_token = 6 * 6.607e9 + 12 * 32 * 4096 * 4096
    assert run.operations == pytest.approx(1e12 * per_token, rel=1e-3)
    assert run.duration_s is not None
    # 8 GPUs of 989.5 TFLOP/s at the plan's MFU, for half of the time.
    assert run.duration_s == pytest.approx(run.operations / (8 * 989.5e12 * plan.mfu) / 0.5)
    assert run.price == pytest.approx(8 * run.duration_s / 3600 * 2.0)


def test_failures_of_many_gpus_and_the_best_interval() -> None:
    plan, cluster = planned("405b", "--parallel.dp", "2048", checkpoint_s=60.0, restart_s=600.0)
    costs = failures(plan, cluster)
    # 50,000 h x 3,600 / 2,048 = 87,891 s
    assert costs.mtbf_s == pytest.approx(87_890.6, rel=1e-5)
    # Young: sqrt(2 x 60 x 87,891) = 3,247.6 s. Daly: x (1 + sqrt(60 / 175,781) / 3 + 60 / 175,781 / 9) - 60 = 3,207.7 s
    assert costs.young_s == pytest.approx(3247.6, abs=0.1)
    assert costs.daly_s == pytest.approx(3207.7, abs=0.1)
    # Saving: 60 / 3,267.7 = 1.836 %. Lost: (3,267.7 / 2 + 600) / 87,891 = 2.542 %.
    assert costs.saving == pytest.approx(0.01836, abs=1e-5)
    assert costs.lost == pytest.approx(0.02542, abs=1e-5)
    assert costs.goodput == pytest.approx((1 - 0.01836) * (1 - 0.02542), abs=1e-5)


def test_a_checkpoint_that_nobody_measured_is_a_copy_to_the_host() -> None:
    plan, cluster = planned("7b", "--parallel.dp", "4")
    # 12 bytes x 6.738e9 / 4 over PCIe 5 at 80 %: 504 Gbit/s / 8 x 0.8 = 50.4 GB/s
    assert failures(plan, cluster).checkpoint_s == pytest.approx(12 * 6.738e9 / 4 / 50.4e9, rel=1e-3)


def test_a_checkpoint_that_takes_longer_than_the_time_between_failures_has_an_interval_all_the_same() -> None:
    plan, cluster = planned("7b", "--parallel.dp", "4", gpu_hours_to_failure=0.001, checkpoint_s=60.0)
    costs = failures(plan, cluster)
    assert costs.daly_s == costs.mtbf_s == pytest.approx(0.9)
    assert (costs.lost, costs.goodput) == (1.0, 0.0)
    assert whole_run(plan, cluster, tokens=1e12, goodput=costs.goodput).duration_s is None


def test_an_offloaded_optimizer_costs_a_share_of_the_step_on_pcie() -> None:
    flags = (
        "--parallel.dp",
        "4",
        "--train.global_batch",
        "16",
        "--parallel.microbatches",
        "4",
        "--memory.checkpointing",
        "full",
    )
    steps = {
        offload: planned("7b", *flags, "--memory.offload", offload, gpu="a100")[0].time
        for offload in ("none", "optimizer", "parameters")
    }
    # Gradients of a rank there and weights back: 2 x 4 bytes x 1.685e9, over PCIe 4 at 80 % (25.2 GB/s).
    assert steps["optimizer"].offload_s == pytest.approx(8 * 1.6846e9 / 25.2e9, rel=1e-3)
    # Adam reads and writes 28 bytes of each parameter in the host's memory, at 50 GB/s for each GPU.
    assert steps["optimizer"].optimizer_s == pytest.approx(28 * 1.6846e9 / 50e9, rel=1e-3)
    assert steps["none"].offload_s == 0.0
    slower = steps["optimizer"].total_s / steps["none"].total_s - 1
    assert 0.2 <= slower <= 0.5
    # With all state there, the shards come while the GPU computes: nothing waits for them here.
    assert steps["parameters"].offload_s == 0.0


def test_parameters_on_the_host_are_waited_for_if_the_gpu_computes_little() -> None:
    flags = ("--parallel.dp", "4", "--train.global_batch", "4", "--data.sequence", "128")
    time = planned("7b", *flags, "--memory.offload", "parameters", gpu="a100")[0].time
    # Two gathers of 4 bytes x 1.685e9 over 25.2 GB/s, less the time that the GPU computes.
    assert time.offload_s == pytest.approx(2 * 4 * 1.6846e9 / 25.2e9 - time.compute_s, rel=1e-3)


def test_a_pipeline_of_32_stages_by_its_microbatches() -> None:
    by_schedule = {row.schedule: row for row in efficiencies(32)}
    # m / (m + 31): 8/39, 16/47, 32/63, 64/95, and 0.9 from m = 9 x 31 = 279 on.
    assert by_schedule["1f1b"].shares == pytest.approx(
        {8: 8 / 39, 16: 16 / 47, 32: 32 / 63, 64: 64 / 95, 128: 128 / 159}
    )
    assert by_schedule["1f1b"].count_for_most == 279
    # With two stages on each rank half as many do: 2 m / (2 m + 31).
    assert by_schedule["interleaved-1f1b"].shares[8] == pytest.approx(16 / 47)
    assert by_schedule["interleaved-1f1b"].count_for_most == 140
    assert microbatches_for(0.5, pp=32, schedule="gpipe") == 31


def test_more_replicas_of_one_layout_lose_what_they_wait_for() -> None:
    plan, cluster = planned("7b", "--parallel.dp", "64", "--parallel.zero", "1", network_gbps=10)
    scales = list(scaling(plan, cluster))
    assert [one.gpus for one in scales] == [1, 2, 4, 8, 16, 32, 64]
    assert scales[0].efficiency == 1.0
    assert scales[-1].efficiency < scales[3].efficiency <= 1.0
    assert scales[-1].tokens_per_s == pytest.approx(1024 * 4096 / plan.time.total_s)
    assert scales[-1].efficiency == pytest.approx(scales[-1].tokens_per_s / 64 / scales[0].tokens_per_s)


def test_replicas_that_share_experts_are_not_fewer_than_they() -> None:
    plan, cluster = planned(
        "7b", "--parallel.dp", "16", "--parallel.microbatches", "64", "--model.experts", "8", "--parallel.ep", "4"
    )
    assert [one.gpus for one in scaling(plan, cluster)] == [4, 8, 16]


def test_gathers_and_reductions_share_the_links_that_a_pass_hides() -> None:
    flags = ("--parallel.dp", "8", "--parallel.microbatches", "128", "--memory.checkpointing", "full")
    time = planned("7b", *flags, gpus_per_node=1, network_gbps=20)[0].time
    plan, _ = planned("7b", *flags, gpus_per_node=1, network_gbps=20)
    busy = {traffic.kind: traffic.duration_s for traffic in plan.traffic}
    gather_s, scatter_s = busy["dp all-gather"], busy["dp reduce-scatter"]
    # Of 4 parts of the computation, 1 is the forward pass. Half of the gathers run during it, the other half and all
    # reductions during the backward passes.
    exposed_s = max(0.0, gather_s / 2 - time.compute_s / 4) + gather_s / 2 + scatter_s - 3 / 4 * time.compute_s
    assert time.communication_s == pytest.approx(exposed_s)
    assert time.total_s > gather_s + scatter_s


def test_a_checkpoint_is_not_more_frequent_than_a_step() -> None:
    plan, cluster = planned("405b", "--parallel.dp", "2048", checkpoint_s=1e-6)
    costs = failures(plan, cluster)
    assert costs.daly_s < costs.interval_s == plan.time.total_s


def test_an_explanation_has_the_numbers_that_were_computed() -> None:
    config = TrainerConfig()
    cluster = Cluster.of(GPUS["a100"], HardwareConfig())
    with explaining() as terms:
        plan = make_plan(config, cluster, pipeline_places(config))
    make_plan(config, cluster, pipeline_places(config))  # nothing is collected outside
    by_name = {term.name: term for term in terms}
    assert by_name["computation"].value == plan.time.compute_s
    assert by_name["optimizer"].value == plan.time.optimizer_s
    assert by_name["computation"].numbers["efficiency"] == 0.6
    assert not any(math.isnan(term.value) for term in terms)
