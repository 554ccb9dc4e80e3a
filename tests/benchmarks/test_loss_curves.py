"""The benchmark of the number detectors counts what happened in curves whose incidents are known."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.loss_curves.curves import read_curves
from benchmarks.loss_curves.score import score
from benchmarks.loss_curves.trial import try_curve

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "spikes.py"
ROWS, ONSET, END = 600, 400, 430


def write(folder: Path, name: str, losses: list[float]) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in enumerate(losses)))


@pytest.fixture
def curves(tmp_path: Path) -> Path:
    """Return a folder with a healthy curve and one with a spike, both of noise around a slow descent."""
    noise = random.Random(0)
    healthy = [3.0 * 0.9995**step + noise.gauss(0.0, 0.02) for step in range(ROWS)]
    write(tmp_path, "runs/healthy.csv", healthy)
    write(tmp_path, "runs/spike.csv", [loss * (1.6 if ONSET <= i <= END else 1.0) for i, loss in enumerate(healthy)])
    (tmp_path / "labels.json").write_text(
        json.dumps({"runs/spike.csv": [{"first": ONSET, "last": END, "kind": "spike"}]})
    )
    return tmp_path


def test_a_spike_is_found_and_counted_once(curves: Path) -> None:
    figures = score([try_curve(curve) for curve in read_curves(curves)])
    assert (figures["runs"], figures["points"], figures["incidents"]) == (2, 2 * ROWS, 1)
    assert figures["found_within_5"] == figures["found_within_50"] == 1
    assert figures["false_per_100k"] == {"runs": {"false": 0, "points": 2 * ROWS - (END - ONSET + 11), "per_100k": 0.0}}


def test_without_its_label_the_same_spike_is_a_false_alarm(curves: Path) -> None:
    (curves / "labels.json").unlink()
    figures = score([try_curve(curve) for curve in read_curves(curves)])
    assert figures["incidents"] == 0
    assert figures["false_per_100k"]["runs"]["false"] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("runs/healthy.csv", "step,loss\n1,low\n", "runs/healthy.csv: could not convert string to float: 'low'"),
        ("labels.json", '{"runs/spike.csv": [{"first": 1}]}', "wanted paths with lists of first, last and kind"),
        ("labels.json", "[", "wanted paths with lists of first, last and kind"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused_in_one_line(
    curves: Path, name: str, text: str, complaint: str
) -> None:
    (curves / name).write_text(text)
    done = subprocess.run([sys.executable, BENCHMARK, "--json", curves], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and complaint in done.stderr


def test_a_file_without_rows_is_left_out(curves: Path) -> None:
    write(curves, "runs/empty.csv", [])
    assert [curve.name for curve in read_curves(curves)] == ["runs/healthy.csv", "runs/spike.csv"]
