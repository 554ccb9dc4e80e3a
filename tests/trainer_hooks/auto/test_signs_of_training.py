"""Which optimizer ends a step."""

import pytest

from holdfast_hooks.auto.signs_of_training import StepCycle


def ends(cycle: StepCycle, order: str) -> str:
    """Return the optimizers of ``order``, with a bar behind each that ends a step."""
    return "".join(one + ("|" if cycle.ends_with(ord(one)) else "") for one in order)


@pytest.mark.parametrize(
    ("order", "seen"),
    [
        ("aaaa", "a|a|a|a|"),
        ("abababab", "a|bab|ab|ab|"),
        ("aabaabaab", "a|a|baab|aab|"),
        ("abcabcabc", "a|bcabc|abc|"),
        ("aaabbbaaa", "a|a|a|bb|b|aaa"),  # two stages: the second has an optimizer of its own
    ],
)
def test_the_last_of_the_cycle_ends_a_step(order: str, seen: str) -> None:
    assert ends(StepCycle(), order) == seen


def test_an_optimizer_that_steps_no_more_is_done_without() -> None:
    cycle = StepCycle()
    ends(cycle, "ababab")
    assert ends(cycle, "a" * 200).endswith("a|a|a|")
    assert ends(cycle, "aba") == "a|ba|"  # it stays out


def test_one_that_was_out_ends_steps_again_once_it_is_alone() -> None:
    cycle = StepCycle()
    ends(cycle, "abab" + "a" * 200)
    assert ends(cycle, "b" * 300).endswith("b|b|b|")


def test_one_for_each_of_many_parameters_may_leave_some_out() -> None:
    cycle, order = StepCycle(), [chr(number) for number in range(1000, 1300)]
    ends(cycle, "".join(order) * 2)
    assert ends(cycle, "".join(order[::2] + order[-1:])).count("|") == 1
    assert ends(cycle, "".join(reversed(order)) * 5).count("|") == 5
