"""Data are left out once, exactly where a window begins, also after restarts."""

import logging
from typing import Any

import pytest
import torch

from holdfast_hooks.hook_errors import ConfigurationError, OnceLog
from holdfast_hooks.state.data_windows import DataWindows
from holdfast_hooks.state.encoding import Stateful
from holdfast_proto.left_out import Windows
from holdfast_proto.rank_context import RankContext

WINDOWS = ((3, 2), (8, 1))


class Position:
    """A position in data that are their own numbers."""

    def __init__(self) -> None:
        self.next = 0

    def skip(self, steps: int) -> None:
        self.next += steps

    def take(self) -> int:
        self.next += 1
        return self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class Loader(Position):
    """A position that knows how many batches a step takes."""

    def __init__(self, batches_per_step: int) -> None:
        super().__init__()
        self.batches_per_step, self.fetched = batches_per_step, 0


def context(**fields: Any) -> RankContext:
    return RankContext(run="r", generation=1, agent="unix:/nowhere", black_box="/nowhere", **fields)


def windows_of(*state: Stateful, by_step: bool = False) -> DataWindows:
    return DataWindows(dict(zip("abc", state, strict=False)), by_step=by_step, once=OnceLog())


def trained(data: DataWindows, position: Position, steps: range) -> list[int]:
    """Train steps, and return the numbers of their data."""
    found = []
    for step in steps:
        found.append(position.take())
        assert data.data_of(step) == found[-1]
        if step >= data.due:
            data.after(step)
    return found


def test_steps_train_on_what_is_not_left_out() -> None:
    position = Position()
    data = windows_of(position)
    data.begin(context(left_out=WINDOWS), -1)
    assert trained(data, position, range(8)) == [0, 1, 2, 5, 6, 7, 9, 10]


@pytest.mark.parametrize("last", range(7))
def test_a_restart_after_any_step_trains_on_the_same_data(last: int) -> None:
    first = Position()
    data = windows_of(first)
    data.begin(context(left_out=WINDOWS), -1)
    before = trained(data, first, range(last))
    before.append(first.take())
    saved = data.state_dict(), first.state_dict()  # a snapshot is taken before anything is left out after its step
    again = Position()
    data = windows_of(again)
    data.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    data.begin(context(left_out=WINDOWS), last)
    assert [*before, *trained(data, again, range(last + 1, 8))] == [0, 1, 2, 5, 6, 7, 9, 10]


def test_the_rest_of_a_window_that_an_earlier_line_has_trained_on_in_part_is_left_out() -> None:
    position = Position()
    position.next = 4
    data = windows_of(position)
    data.begin(context(left_out=((3, 5),)), 3)
    assert trained(data, position, range(4, 6)) == [8, 9]


@pytest.mark.parametrize("fields", [{"rolls_back": True}, {"left_out": WINDOWS}])
def test_a_script_that_cannot_leave_data_out_is_refused_only_if_it_must(fields: dict[str, Any]) -> None:
    def start(data: DataWindows, **settings: Any) -> None:
        data.check(context(**settings))
        data.begin(context(**settings), -1)

    with pytest.raises(ConfigurationError, match=r"no object in `state` can leave data out: give `state` an object"):
        start(windows_of(), **fields)
    start(windows_of())
    start(windows_of(Position()), **fields)
    start(windows_of(by_step=True), **fields)
    model = torch.nn.Module()
    model.skip = torch.nn.Identity()  # as residual networks call their connections
    with pytest.raises(ConfigurationError, match="can leave data out"):
        start(windows_of(model), **fields)
    windows_of().begin(context(**fields), -1)  # a rank that is not asked may have no data
    behind = windows_of()
    behind.load_state_dict({"steps": 3})
    behind.begin(context(left_out=WINDOWS), 5)  # all that is left out lies behind it


@pytest.mark.parametrize(("has_left_out", "windows", "said"), [(2, (), 0), (0, WINDOWS, 2), (1, WINDOWS, 2)])
def test_a_state_that_has_left_out_other_data_is_refused_if_a_roll_back_would_count_on_it(
    has_left_out: int, windows: Windows, said: int
) -> None:
    data = windows_of(Position())
    data.load_state_dict({"steps": has_left_out})
    data.begin(context(left_out=windows), 4)
    data.load_state_dict({"steps": has_left_out})
    what = f"has left out the data of {has_left_out} steps, and the records of its checkpoints say {said}: "
    with pytest.raises(ConfigurationError, match=what):
        data.begin(context(left_out=windows, rolls_back=True), 4)
    data.load_state_dict({"steps": said})
    data.begin(context(left_out=windows, rolls_back=True), 4)
    at_end = windows_of(Position())
    at_end.load_state_dict({"steps": 2})  # saved after the loop had gone past the first window
    at_end.begin(context(left_out=WINDOWS, rolls_back=True), 2)


def test_a_loader_that_expects_another_number_of_batches_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    loader = Loader(4)
    data = windows_of(loader)
    data.begin(context(rolls_back=True), 9)
    with caplog.at_level(logging.WARNING):
        for step in (10, 11):
            loader.fetched += 3
            if step >= data.due:
                data.after(step)
    assert [record.getMessage() for record in caplog.records] == [
        "step 10 has fetched 3 batches, and its ResumableLoader expects 4: pass batches_per_step=3, else windows of"
        " data have another length"
    ]


@pytest.mark.parametrize(("expected", "fetches"), [(4, 4), (2, 0)])
def test_a_loader_that_expects_the_right_number_is_not_named(
    expected: int, fetches: int, caplog: pytest.LogCaptureFixture
) -> None:
    loader = Loader(expected)
    data = windows_of(loader)
    data.begin(context(rolls_back=True), 9)
    loader.fetched += fetches
    data.after(10)
    assert not caplog.records


def test_a_loader_that_would_leave_out_too_little_is_refused_if_the_run_rolls_back() -> None:
    loader = Loader(1)
    data = windows_of(loader)
    data.begin(context(rolls_back=True), -1)
    loader.fetched += 4
    with pytest.raises(ConfigurationError, match="pass batches_per_step=4"):
        data.after(0)


def test_a_count_that_is_none_is_refused() -> None:
    data = windows_of()
    for steps in (-1, 2.0, None):
        with pytest.raises(ValueError, match="is no number of steps whose data were left out"):
            data.load_state_dict({"steps": steps})
    data.load_state_dict(None)
    assert data.left_out == 0
