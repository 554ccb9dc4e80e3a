from typing import Any

import pytest

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import ModelConfig, TrainConfig
from holdfast_trainer.planning.activations import block_bytes_per_token
from holdfast_trainer.planning.hardware import GPUS, Cluster
from holdfast_trainer.planning.plan import make_plan, pipeline_places
from holdfast_trainer.planning.search import Search, search
from holdfast_trainer.planning.settings import load_layout, load_search

H100 = GPUS["h100"]
CLUSTER = Cluster(H100, 8, H100.node_gbps, H100.network_gbps)


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
    slow = Cluster(H100, 2, H100.node_gbps, 10)
    fast = Cluster(H100, 2, H100.node_gbps, 400)
    settings = config({"dp": 2, "tp": 2})
    times = [
        {part.kind: part.duration_s for part in make_plan(settings, cluster, pipeline_places(settings)).traffic}
        for cluster in (slow, fast)
    ]
    assert times[0]["tp"] == times[1]["tp"]
    assert times[0]["dp all-gather"] == pytest.approx(40 * times[1]["dp all-gather"])


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


@pytest.mark.parametrize(
    ("flags", "key"),
    [(["--parallel.tp", "x"], "parallel.tp"), (["--parallel.nope", "1"], "parallel.nope"), (["--nope", "1"], "nope")],
)
def test_wrong_flags_are_refused_by_name(flags: list[str], key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        load_search(None, "7b", flags)


def test_a_wrong_layout_is_refused_as_by_the_trainer() -> None:
    with pytest.raises(ConfigurationError, match=r"parallel\.microbatches is 1, but 4 pipeline ranks"):
        load_layout(None, "7b", ["--parallel.pp", "4"])
