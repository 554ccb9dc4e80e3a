import itertools
from typing import Any

import pytest

pytestmark = pytest.mark.system

SMALL = {"dim": 32, "layers": 2, "heads": 2, "kv_heads": 1, "hidden": 48}


def test_hooks_get_the_phases_and_figures_of_each_step(run_ranks: Any) -> None:
    train = {"steps": 2, "global_batch": 4, "validate_every": 2, "log_every": 2}
    output = run_ranks("calls", model=SMALL, train=train)
    compute = ["DATA", "FORWARD_BACKWARD", "report ['samples']", "OPTIMIZER"]
    assert [line for line in output.splitlines() if not line.startswith("step 1  ")] == [
        "attach ['model', 'optimizer', 'scheduler'] {'pp': 0, 'dp': 0, 'tp': 0} cpu 1",
        "watch ['embedding', 'layers.0', 'layers.1', 'norm'] head",
        *["step 0", *compute, "report ['grad_norm', 'learning_rate', 'loss', 'tokens']"],
        *["step 1", *compute, "report ['grad_norm', 'learning_rate', 'loss', 'tokens', 'update_norm']"],
        *["EVAL", "report ['validation_loss']"],
        "exit",
    ]


def test_updates_are_checked_in_each_step_if_the_configuration_says_so(run_ranks: Any) -> None:
    train = {"steps": 2, "global_batch": 4, "validate_every": 0}
    output = run_ranks("calls", model=SMALL, train=train, optimizer={"check_updates": True})
    followed = [after for line, after in itertools.pairwise(output.splitlines()) if line == "OPTIMIZER"]
    assert followed == ["should_update"] * 2


def test_runs_end_with_the_same_bits_also_when_resumed_from_the_state_given_to_the_hooks(run_ranks: Any) -> None:
    train = {"steps": 6, "global_batch": 4, "validate_every": 0}
    output = run_ranks("digests", model=SMALL, train=train, parallel={"microbatches": 2}, optimizer={"warmup_steps": 2})
    (how, first), again, resumed = [line.split() for line in output.splitlines()]
    assert how == "undisturbed"
    assert again == ["undisturbed", first]
    assert resumed == ["resumed", first]


def test_preloaded_rank_imports_next_to_nothing(run_ranks: Any) -> None:
    train = {"steps": 2, "global_batch": 4, "validate_every": 1}
    imported = run_ranks("imports", model=SMALL, train=train).splitlines()[-1].split()
    assert len(imported) <= 2, imported
