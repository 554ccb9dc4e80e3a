import math
import threading
from typing import Any

import numpy
import pytest
import torch

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.telemetry.deferred import DeferredNumbers
from holdfast_hooks.telemetry.logged_numbers import LoggedNumbers
from holdfast_proto.limits import LOGGED_NAME_CHARACTERS, MOST_LOGGED_NAMES
from tests.trainer_hooks.test_session import Flag


class Odd:
    """An object whose conversion to a number fails in a way of its own."""

    def __float__(self) -> float:
        raise RuntimeError


class BadText(str):
    """A text that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.fixture
def logged() -> LoggedNumbers:
    return LoggedNumbers(OnceLog())


def taken(logged: LoggedNumbers) -> dict[str, tuple[float, int]]:
    return {number.name: (number.value, number.step) for number in logged.take()}


def owed(value: object, arrived: Any) -> DeferredNumbers:
    """Return a number that a GPU owes until ``arrived`` is set."""
    return DeferredNumbers((torch.tensor(value),), arrived)


def test_the_newest_number_of_each_name_is_taken_once(logged: LoggedNumbers) -> None:
    logged.add({"rewards/chosen": 0.1, "kl": 3}, 4)
    logged.add({"rewards/chosen": torch.tensor([0.25])}, 5)
    assert taken(logged) == {"rewards/chosen": (0.25, 5), "kl": (3.0, 4)}
    assert taken(logged) == {}


def test_numbers_of_any_kind_are_taken_and_anything_else_is_left_out(
    logged: LoggedNumbers, caplog: pytest.LogCaptureFixture
) -> None:
    numbers: dict[str, Any] = {
        "numpy": numpy.float32(0.5),
        "bool": True,
        "tensor": torch.tensor(2, dtype=torch.bfloat16),
        "array": numpy.array([4.0]),
        numpy.str_("name"): 5,
        "complex": 1 + 2j,
        "numpy complex": numpy.complex64(1 + 2j),
        "tensor complex": torch.tensor(1j),
        "text": "1.5",
        "none": None,
        "table": [1.0],
        "image": torch.zeros(3),
        "odd": Odd(),
        "bad": math.nan,
    }
    logged.add(numbers, 0)
    found = taken(logged)
    assert math.isnan(found.pop("bad")[0])
    assert found == {"numpy": (0.5, 0), "bool": (1.0, 0), "tensor": (2.0, 0), "array": (4.0, 0), "name": (5.0, 0)}
    assert not caplog.messages


def test_a_number_that_a_gpu_owes_waits_alone(logged: LoggedNumbers) -> None:
    arrived = Flag()
    logged.add({"early": 1.0}, 0)
    logged._newest["late"] = 0, owed(7.0, arrived)
    assert taken(logged) == {"early": (1.0, 0)}
    assert taken(logged) == {}
    arrived.is_set = True
    assert taken(logged) == {"late": (7.0, 0)}
    assert taken(logged) == {}


def test_a_host_that_is_always_ahead_of_its_gpu_shows_numbers_all_the_same(logged: LoggedNumbers) -> None:
    found: list[dict[str, tuple[float, int]]] = []
    before = Flag()
    for step in range(6):
        present = Flag()
        logged._newest["reward"] = step, owed(float(step), present)
        found.append(taken(logged))
        before.is_set = True  # the GPU is one step behind
        before = present
    assert [numbers for numbers in found if numbers] == [{"reward": (0.0, 0)}, {"reward": (2.0, 2)}]
    before.is_set = True
    assert taken(logged) == {"reward": (5.0, 5)}


def test_a_newer_number_that_has_arrived_takes_the_place_of_the_one_before(logged: LoggedNumbers) -> None:
    arrived = Flag()
    logged._newest["late"] = 0, owed(7.0, arrived)
    assert taken(logged) == {}
    logged.add({"late": 9.0}, 1)
    assert taken(logged) == {}  # in order: the one before is on its way
    arrived.is_set = True
    assert taken(logged) == {"late": (9.0, 1)}


def test_a_complex_number_from_a_gpu_disturbs_no_other(logged: LoggedNumbers) -> None:
    arrived = Flag()
    arrived.is_set = True
    logged._newest["complex"] = 0, owed(1j, arrived)
    logged.add({"loss": 1.0}, 0)
    assert taken(logged) == {"loss": (1.0, 0)}
    assert taken(logged) == {}


@pytest.mark.parametrize("numbers", [None, [("a", 1)], 7, {BadText("kl"): 1.0}, {Odd(): 1.0}])
def test_nothing_that_a_script_gives_raises_into_it(logged: LoggedNumbers, numbers: Any) -> None:
    logged.add(numbers, 0)
    logged.add({"loss": 1.0}, 1)
    assert taken(logged)["loss"] == (1.0, 1)


def test_several_threads_may_log(logged: LoggedNumbers) -> None:

    def log(thread: int) -> None:
        for step in range(50):
            logged.add({f"{thread}-{step}": 1.0, "loss": float(step)}, step)

    threads = [threading.Thread(target=log, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken(logged)) == MOST_LOGGED_NAMES


def test_a_name_for_each_step_ends_at_the_limit_and_the_first_names_go_on(
    logged: LoggedNumbers, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(3 * MOST_LOGGED_NAMES):
        logged.add({f"sample-{step}": 1.0, "loss": float(step)}, step)
    found = taken(logged)
    assert len(found) == MOST_LOGGED_NAMES
    assert found["loss"] == (3.0 * MOST_LOGGED_NAMES - 1, 3 * MOST_LOGGED_NAMES - 1)
    [line] = caplog.messages
    assert line.startswith("numbers are shown under 64 names, and the script logs more: 'sample-63' is left out")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * (LOGGED_NAME_CHARACTERS + 1), 7, ("a", "b"), None])
def test_a_name_that_cannot_be_shown_is_named_once(
    logged: LoggedNumbers, name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logged.add({name: 1.0, "loss": 2.0}, 0)
    logged.add({name: 1.0}, 1)
    assert taken(logged) == {"loss": (2.0, 0)}
    [line] = caplog.messages
    assert line.startswith("a logged number is not shown: its name is no text of 1 to 100 printable characters: ")
