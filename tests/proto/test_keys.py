import inspect

import pytest
from redis.crc import key_slot

from holdfast_proto import keys

RUN_KEYS = [
    function
    for name, function in inspect.getmembers(keys, inspect.isfunction)
    if next(iter(inspect.signature(function).parameters)) == "run" and name != "check_run_name"
]


def keys_of(run: str) -> list[str]:
    further = {"node_name": "node-1", "name": "0001-x", "generation": 7}
    return [make(run, *(further[name] for name in list(inspect.signature(make).parameters)[1:])) for make in RUN_KEYS]


def test_all_keys_of_a_run_are_in_one_slot_of_a_cluster() -> None:
    made = keys_of("llama-7b.v2")
    assert len(set(made)) == len(RUN_KEYS) == 16
    assert len({key_slot(key.encode()) for key in made}) == 1


def test_the_keys_of_two_runs_share_nothing() -> None:
    assert not set(keys_of("a")) & set(keys_of("b"))


@pytest.mark.parametrize("run", ["a", "0", "Llama-7b.v2_x", "x" * 63])
def test_good_names_of_runs_are_taken_as_they_are(run: str) -> None:
    assert keys.check_run_name(run) == run


@pytest.mark.parametrize("run", ["", "-a", ".", "..", "a/b", "a b", "a}b", "a\n", "é", "x" * 64])
def test_bad_names_of_runs_are_repeated_in_the_refusal(run: str) -> None:
    with pytest.raises(ValueError, match="1 to 63 letters") as caught:
        keys.check_run_name(run)
    assert repr(run) in str(caught.value)
    assert "\n" not in str(caught.value)
