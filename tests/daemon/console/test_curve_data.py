"""The page's arithmetic of curves, run by Node."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast_daemon.console.console_app import STATIC
from tests.support.programs import needs

pytestmark = needs("node")

MODULE = STATIC / "js" / "charts" / "curve_data.js"


def run(script: str) -> Any:
    """Return what a script leaves in ``out``. It sees all that the module exports, as ``it``."""
    program = f"import * as it from {json.dumps(MODULE.as_uri())}; let out; {script}; console.log(JSON.stringify(out));"
    command = ["node", "--input-type=module", "--eval", program]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


def row(step: int, loss: float | None, norm: float | None = None) -> list[float | None]:
    return [step, 0.0, loss, norm, None, 0.5, None, None]


def event(*rows: list[float | None], undone_after: int | None = None, bad: Sequence[int] = ()) -> dict[str, Any]:
    return {"rows": rows, "undone_after": undone_after, "nonfinite": {"loss": bad} if bad else {}}


def appended(*events: dict[str, Any]) -> Any:
    calls = "".join(f"it.appendSteps(curves, {json.dumps(event)});" for event in events)
    return run(f"const curves = it.readCurves(null); {calls} out = curves")


def test_a_step_without_a_loss_is_no_point_and_not_called_bad() -> None:
    curves = appended(event(row(1, None), row(2, 3.0)))
    assert (curves["loss"]["step"], curves["loss"]["nonfinite"], curves["step_s"]["step"]) == ([2], [], [1, 2])


def test_a_loss_that_is_not_finite_is_a_gap_and_a_mark() -> None:
    curves = appended(event(row(1, 2.0), row(2, None), bad=[2]))
    assert (curves["loss"]["step"], curves["loss"]["mean"]) == ([1, 2], [2.0, None])
    assert curves["loss"]["nonfinite"] == [2]


def test_what_a_restart_undid_is_taken_out() -> None:
    first = event(*(row(step, float(step)) for step in range(5)))
    curves = appended(first, event(row(3, 30.0), undone_after=2))
    assert curves["loss"]["mean"] == [0.0, 1.0, 2.0, 30.0]


def test_steps_that_arrived_while_curves_were_fetched_stay() -> None:
    shown = event(row(0, 1.0), row(1, None, 5.0), row(2, None), bad=[2])
    curves = run(
        f"const shown = it.readCurves(null); it.appendSteps(shown, {json.dumps(shown)});"
        "const fetched = it.readCurves({curves: {loss: {step: [0], mean: [1], low: [1], high: [1], nonfinite: []}}});"
        "it.carryOver(fetched, shown); out = fetched"
    )
    assert (curves["loss"]["step"], curves["loss"]["mean"], curves["loss"]["nonfinite"]) == ([0, 2], [1, None], [2])
    assert curves["grad_norm"]["step"] == [1]


def test_smoothing_is_fair_to_the_first_points_and_keeps_gaps() -> None:
    assert run("out = it.smoothed([2, 2, null, 2], 0.9)") == pytest.approx([2.0, 2.0, None, 2.0])
    assert run("out = it.smoothed([0, 1], 0.5)") == pytest.approx([0.0, 2.0 / 3.0])


@pytest.mark.parametrize("size", [1e-12, 1.0, 8.192e10])
def test_values_that_differ_by_rounding_alone_get_an_axis_that_can_be_divided(size: float) -> None:
    low, high = run(f"out = it.calmRange({size!r}, {size * (1 + 4e-16)!r})")
    assert low < size < high
    assert (high - low) / size > 0.01
    assert run(f"out = it.calmRange({size}, {2 * size})") == pytest.approx([0.94 * size, 2.06 * size])


def test_an_axis_has_ends_without_values_and_for_huge_ones() -> None:
    assert run("out = it.calmRange(null, null)") == [0, 1]
    assert run("out = it.calmRange(1e300, 1.7e308)") == [1e300, 1.7e308]


def test_the_newest_value_is_bad_only_if_it_was_reported_and_not_finite() -> None:
    def ends_bad(*rows: list[float | None], bad: list[int]) -> bool:
        newest = json.dumps(event(*rows, bad=bad))
        script = f"const curves = it.readCurves(null); it.appendSteps(curves, {newest});"
        return bool(run(f"{script} out = it.endsBad(curves.loss)"))

    assert ends_bad(row(1, 2.0), row(2, None), bad=[2])
    assert ends_bad(row(1, 2.0), row(2, None), row(3, None), bad=[2])
    assert not ends_bad(row(1, 2.0), row(2, None), bad=[])
    assert not ends_bad(row(1, None), row(2, 2.0), bad=[1])
    assert not ends_bad(bad=[])


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([76.0] + [0.5] * 19, 0.75),  # the first step compiles: the others stay readable
        ([76.0] + [0.5] * 18, None),  # too few to tell what is usual
        ([0.5, 1.4] * 20, None),
        ([None] * 20 + [0.5] * 20 + [9.0], 0.75),
        ([76.0] * 3 + [0.5] * 20, None),  # more than a few
        ([], None),
    ],
)
def test_a_few_values_far_above_all_others_do_not_flatten_a_curve(
    values: list[float | None], ends: float | None
) -> None:
    assert run(f"out = it.ceiling({{high: {json.dumps(values)}}})") == ends
