import gc
import os
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast_trainer.__main__ import main
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.dry_run.layout_trial import dry_run, tried_ranks
from holdfast_trainer.dry_run.own_process import ProcessDiedError, run_each
from holdfast_trainer.pipeline.cross_entropy import MeanLoss
from holdfast_trainer.planning.parameters import parameter_count
from holdfast_trainer.planning.presets import PRESETS

pytestmark = pytest.mark.system

DEMO = Path(__file__).parents[3] / "trainer" / "holdfast_trainer" / "configs" / "demo.toml"
MODEL: dict[str, Any] = {"dim": 32, "layers": 4, "heads": 4, "kv_heads": 2, "hidden": 64}
EXPERTS = {**MODEL, "experts": 4, "capacity_factor": 1.0}


def small_config(**sections: Any) -> TrainerConfig:
    return TrainerConfig(**{"model": MODEL, "data": {"sequence": 16}, "train": {"global_batch": 16}, **sections})


def unchecked(config: TrainerConfig, **sections: Any) -> TrainerConfig:
    """Return a configuration without a check of the rules between its settings."""
    return config.model_copy(update={name: getattr(config, name).model_copy(update=v) for name, v in sections.items()})


def test_command_prints_one_line_on_a_layout_that_works(capfd: pytest.CaptureFixture[str]) -> None:
    main(["--dry-run", "--config", str(DEMO), "--parallel.dp=1"])
    assert capfd.readouterr() == (
        "dp 1 x cp 1 x tp 2 x pp 2: 4 ranks, 2 stages, 57,600 to 57,664 parameters a rank; every rank took a step\n",
        "",
    )


@pytest.mark.parametrize(
    "sections",
    [
        {"parallel": {"pp": 2, "microbatches": 4, "schedule": "interleaved-1f1b"}},
        {"parallel": {"pp": 2, "microbatches": 4, "schedule": "zero-bubble"}, "precision": {"compute": "bf16"}},
        {"parallel": {"cp": 2}, "memory": {"checkpointing": "selective"}},
        {"parallel": {"dp": 2, "ep": 2, "tp": 2}, "model": EXPERTS, "precision": {"compute": "fp16"}},
        {"parallel": {"dp": 2, "dp_shard": 1, "zero": 2, "microbatches": 2}, "memory": {"offload": "parameters"}},
        {"precision": {"compute": "fp16"}, "optimizer": {"name": "sgd"}, "memory": {"compile": True}},
    ],
    ids=["interleaved", "zero-bubble", "context", "experts", "copies", "sgd"],
)
def test_every_strategy_takes_a_step(sections: dict[str, Any]) -> None:
    config = small_config(**sections)
    result = dry_run(config)
    assert result.problems == ()
    assert result.tried == result.ranks == config.parallel.ranks


def test_a_model_of_billions_of_parameters_needs_no_memory_of_theirs() -> None:
    model = PRESETS["7b"].model
    result = dry_run(small_config(model=model, data={"sequence": 4096}, train={"global_batch": 256}))
    assert result.problems == ()
    assert result.parameters == (parameter_count(model), parameter_count(model))
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 * 2**20, "KiB"


def test_of_a_large_layout_the_first_and_last_rank_of_each_part_of_the_pipeline_are_tried() -> None:
    config = small_config(parallel={"dp": 4, "tp": 2, "pp": 4, "microbatches": 4})
    assert tried_ranks(config) == [0, 7, 8, 15, 16, 23, 24, 31]


def test_a_problem_of_all_ranks_is_one_line_that_names_them_and_the_settings(
    capfd: pytest.CaptureFixture[str],
) -> None:
    (line,) = dry_run(unchecked(small_config(), parallel={"tp": 3})).problems
    assert line.startswith("rank 0 (pp 0 dp 0 tp 0), rank 1 (pp 0 dp 0 tp 1), rank 2 (pp 0 dp 0 tp 2): ")
    assert line.endswith(": change [model], [data] or [parallel]")
    assert "\n" not in line
    assert capfd.readouterr() == ("", "")


def test_a_problem_of_one_stage_names_the_ranks_of_that_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such loss")

    monkeypatch.setattr(MeanLoss, "__call__", fail)
    result = dry_run(small_config(parallel={"pp": 2, "dp": 2, "microbatches": 2}))
    assert result.problems == (
        "rank 2 (pp 1 dp 0 tp 0), rank 3 (pp 1 dp 1 tp 0): the forward and backward passes: ValueError: no such loss: "
        "change [model], [data] or [parallel]",
    )


def test_what_cannot_be_tried_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    main(["--dry-run", "--memory.compile=true", "--model.experts=4"])
    assert capfd.readouterr().out.splitlines()[1:] == [
        "not tried: memory.compile: blocks are tried as they are",
        "not tried: model.experts: tokens are spread evenly over them, not as the router would",
    ]


def test_a_configuration_that_the_rules_refuse_is_not_tried(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--dry-run", "--parallel.pp=2"])
    assert end.value.code == 78
    assert capfd.readouterr().err.splitlines() == [
        "holdfast_trainer: parallel.microbatches is 1, but 2 pipeline ranks need as many: raise parallel.microbatches"
    ]


def test_results_come_in_the_order_of_the_functions_and_a_killed_process_is_reported() -> None:
    functions: list[Callable[[], str]] = [partial(str, 0), die, *(partial(str, number) for number in range(2, 5))]
    results = list(run_each(functions, at_once=2))
    assert [result for result in results if isinstance(result, str)] == ["0", "2", "3", "4"]
    assert isinstance(results[1], ProcessDiedError)
    assert str(results[1]) == "signal 9 ended its process"


def die() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("lives on")


class _OwnedByThisProcess:
    """An object in a cycle, so that only the garbage collector frees it. It ends every other process that frees it."""

    def __init__(self) -> None:
        self._itself = self
        self._pid = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self._pid:
            os.abort()


def test_garbage_of_this_process_is_not_freed_in_the_forks() -> None:
    gc.disable()
    try:
        _OwnedByThisProcess()
        assert list(run_each([lambda: str(gc.collect() is not None)], at_once=1)) == ["True"]
    finally:
        gc.enable()
