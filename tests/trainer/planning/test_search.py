from collections.abc import Collection
from typing import Any

import pytest

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import HardwareConfig, ModelConfig, TrainConfig
from holdfast_trainer.planning.activations import block_bytes_per_token
from holdfast_trainer.planning.hardware import GPUS, Cluster
from holdfast_trainer.planning.plan import by_precision, make_plan, pipeline_places
from holdfast_trainer.planning.search import Search, nearest, search, value_of
from holdfast_trainer.planning.settings import PRESETS, load_layout, load_search, nearest_name

H100 = GPUS["h100"]
CLUSTER = Cluster.of(H100, HardwareConfig())


def found(gpus: int, *flags: str, preset: str = "7b", best: int = 3) -> Search:
    config, parallel, memory = load_search(None, preset, flags)
    return search(config, CLUSTER, gpus=gpus, parallel=parallel, memory=memory, best=best)


def config(parallel: dict[str, Any], **sections: dict[str, Any]) -> TrainerConfig:
    model = {"dim": 1024, "layers": 8, "heads": 8, "kv_heads": 8, "hidden": 4096}
    values: dict[str, Any] = {"model": model, "parallel": parallel, "train": {"global_batch": 64}, **sections}
    return TrainerConfig(**values)


def traffic(cluster: Cluster, parallel: dict[str, Any], **sections: dict[str, Any]) -> dict[str, float]:
    settings = config(parallel, **sections)
    sent = make_plan(settings, cluster, pipeline_places(settings)).traffic
    return {part.kind: part.sent_bytes for part in sent}


def test_layouts_are_ranked_by_time_and_use_all_gpus() -> None:
    best = found(16, best=1000).best
    assert all(plan.config.parallel.ranks == 16 for plan in best)
    times = [plan.time.total_s for plan in best]
    assert times == sorted(times)


def test_layouts_that_need_more_memory_than_there_is_are_counted_and_left_out() -> None:
    result = found(8, "--memory.checkpointing", "none", preset="70b")
    assert (result.best, result.fitting) == ((), 0)
    assert result.too_large > 0
    assert result.smallest_bytes is not None
    assert result.smallest_bytes > 72e9


def test_layouts_that_the_trainer_refuses_are_counted_by_the_setting_at_fault() -> None:
    result = found(64, "--train.global_batch", "32")
    assert result.refused["train.global_batch"] > 0


def test_given_settings_are_not_searched() -> None:
    best = found(16, "--parallel.tp", "4", "--parallel.zero=1", "--memory.checkpointing", "full", best=1000).best
    assert {plan.config.parallel.tp for plan in best} == {4}
    assert {plan.config.parallel.zero for plan in best} == {1}
    assert {plan.config.memory.checkpointing for plan in best} == {"full"}


@pytest.mark.parametrize(
    "flags",
    [
        ("--parallel.cp", "2"),
        ("--parallel.schedule", "gpipe"),
        ("--parallel.pp", "2", "--parallel.zero", "3"),
        ("--parallel.tp", "16"),
        ("--parallel.dp", "4", "--parallel.microbatches", "16"),
    ],
    ids=" ".join,
)
def test_a_given_value_need_not_be_one_that_is_searched(flags: tuple[str, ...]) -> None:
    result = found(16, *flags)
    assert result.best
    for key, value in zip(flags[::2], flags[1::2], strict=True):
        setting = key.removeprefix("--parallel.")
        assert {str(getattr(plan.config.parallel, setting)) for plan in result.best} == {value}
    assert {choice.setting for choice in result.choices if choice.is_given} == {
        key.removeprefix("--parallel.") for key in flags[::2]
    }


def test_a_value_without_a_layout_finds_none() -> None:
    result = found(16, "--parallel.dp", "3")
    assert (result.best, result.too_large, result.refused) == ((), 0, {})


def test_experts_are_spread_over_ranks() -> None:
    experts = ModelConfig(dim=1024, layers=8, heads=8, kv_heads=8, hidden=4096, experts=8)
    settings = TrainerConfig(model=experts, train=TrainConfig(global_batch=64))
    result = search(settings, CLUSTER, gpus=8, parallel={"zero": 1}, memory={}, best=1000)
    assert {plan.config.parallel.ep for plan in result.best} == {1, 2, 4, 8}


def test_what_is_sent_is_what_zero_asks_for() -> None:
    once, every = {"dp": 4, "microbatches": 4, "zero": 1}, {"dp": 4, "microbatches": 4}
    nothing = traffic(CLUSTER, {**every, "zero": 0})
    first, second, third = traffic(CLUSTER, once), traffic(CLUSTER, {**every, "zero": 2}), traffic(CLUSTER, every)
    assert set(nothing) == {"dp all-reduce"}
    assert nothing["dp all-reduce"] == 2 * first["dp reduce-scatter"]
    assert second["dp reduce-scatter"] == 4 * first["dp reduce-scatter"]
    assert second["dp all-gather"] == first["dp all-gather"]
    assert third["dp all-gather"] == 8 * first["dp all-gather"]


def test_tensor_parallel_ranks_send_the_stream_eight_times_a_block() -> None:
    tokens, width, layers, fp32 = 64 * 128, 1024, 8, 4
    assert traffic(CLUSTER, {"tp": 2})["tp"] == 8 / 2 * tokens * width * fp32 * layers


def test_a_slower_network_makes_only_what_crosses_it_slower() -> None:
    slow = Cluster.of(H100, HardwareConfig(gpus_per_node=2, network_gbps=10))
    fast = Cluster.of(H100, HardwareConfig(gpus_per_node=2, network_gbps=400))
    settings = config({"dp": 2, "tp": 2})
    times = [
        {part.kind: part.duration_s for part in make_plan(settings, cluster, pipeline_places(settings)).traffic}
        for cluster in (slow, fast)
    ]
    assert times[0]["tp"] == times[1]["tp"]
    assert times[0]["dp all-gather"] > times[1]["dp all-gather"]


def test_checkpointing_and_parallelism_keep_less_of_a_block() -> None:
    kept = [
        block_bytes_per_token(config({"tp": tp, "sequence_parallel": cut}, memory={"checkpointing": checkpointing}))
        for tp, cut, checkpointing in (
            (1, True, "none"), (1, True, "selective"), (2, False, "none"), (2, True, "none"), (1, True, "full"),
            (2, True, "full"),
        )
    ]  # fmt: skip
    none, selective, uncut, cut, full, cut_full = kept
    assert none > selective > full > cut_full
    assert none > uncut > cut
    assert full == 2 * cut_full == 1024 * 4


def test_a_precision_changes_copies_activations_and_computation_but_not_the_master_weights() -> None:
    flags = ["--parallel.dp", "4", "--parallel.zero", "1", "--parallel.microbatches", "256"]
    settings, _ = load_layout(None, "7b", flags)
    fp32, bf16, fp8 = by_precision(settings, CLUSTER)
    # 2 bytes less for each of 6.738e9 gathered copies, and for buffers in flight: gathers of the embedding and head
    # (262.1e6) and of a block (202.4e6), and gradients of the former.
    assert fp32.state_bytes - bf16.state_bytes == pytest.approx(2 * (6.738e9 + 2 * 262.1e6 + 202.4e6), rel=1e-3)
    assert fp8.state_bytes == bf16.state_bytes
    assert fp8.activation_bytes == bf16.activation_bytes
    assert fp32.activation_bytes["full"] > bf16.activation_bytes["full"]
    none, selective, full = bf16.activation_bytes.values()
    assert none > selective > full
    # Dense peaks of an H100: 67, 989.5 and 1,979 TFLOP/s
    assert fp32.compute_s is not None and bf16.compute_s is not None and fp8.compute_s is not None
    assert fp32.compute_s / bf16.compute_s == pytest.approx(989.5 / 67)
    assert bf16.compute_s / fp8.compute_s == pytest.approx(2.0)
    assert [one.compute_s is None for one in by_precision(settings, Cluster.of(GPUS["v100"], HardwareConfig()))] == [
        False, True, True,
    ]  # fmt: skip
    own = Cluster.of(H100, HardwareConfig(peak_tflops=500))
    assert [one.compute_s is None for one in by_precision(settings, own)] == [True, False, True]


@pytest.mark.parametrize(
    ("flags", "key"),
    [(["--parallel.tp", "x"], "parallel.tp"), (["--parallel.nope", "1"], "parallel.nope"), (["--nope", "1"], "nope")],
)
def test_wrong_flags_are_refused_by_name(flags: list[str], key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        load_search(None, "7b", flags)


def test_fewer_microbatches_than_stages_are_planned_with_the_trainers_refusal() -> None:
    settings, refusal = load_layout(None, "7b", ["--parallel.pp", "4"])
    assert (settings.parallel.pp, settings.parallel.microbatches) == (4, 1)
    assert refusal == "parallel.microbatches is 1, but 4 pipeline ranks need as many: raise parallel.microbatches"


def test_any_other_wrong_layout_is_refused_as_by_the_trainer() -> None:
    with pytest.raises(ConfigurationError, match=r"model\.heads is 32, which parallel\.tp = 6 does not divide"):
        load_layout(None, "7b", ["--parallel.pp", "4", "--parallel.tp", "6"])


def test_tensor_parallel_groups_divide_a_node() -> None:
    assert {plan.config.parallel.tp for plan in found(24, "--train.global_batch", "1536", best=1000).best} <= {
        1,
        2,
        4,
        8,
    }


def test_each_choice_of_the_first_layout_has_the_cost_of_the_next_best() -> None:
    result = found(16, best=1000)
    first = result.best[0]
    for choice in result.choices:
        others = [plan for plan in result.best if value_of(plan.config, choice.setting) != choice.value]
        assert choice.value == value_of(first.config, choice.setting)
        assert choice.other == (others[0] if others else None)


def test_the_nearest_layout_that_fits_changes_as_little_as_it_can() -> None:
    settings, _ = load_layout(None, "7b", ["--parallel.dp", "4"])
    other = nearest(settings, CLUSTER)
    assert other is not None
    assert other.parallel.model_copy(update={"microbatches": 1}) == settings.parallel
    assert other.parallel.microbatches > 1
    assert nearest(load_layout(None, "405b", [])[0], CLUSTER) is None


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("9b", PRESETS, "8b"),
        ("72B", PRESETS, "70b"),
        ("h300", GPUS, "h200"),
        ("A100-80", GPUS, "a100"),
        ("l4", GPUS, "l40s"),
    ],
)
def test_an_unknown_name_has_a_nearest_one(name: str, known: Collection[str], near: str) -> None:
    assert nearest_name(name, known) == near
