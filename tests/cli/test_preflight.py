import json
from pathlib import Path

import pytest

from holdfast_agent.preflight.measuring import CheckedPlaces
from holdfast_cli.views import check_table
from holdfast_core.texts.nodes import figure_text
from holdfast_proto.v1 import store_pb2 as store
from tests.cli.conftest import holdfast


def check_with(monkeypatch: pytest.MonkeyPatch, check: store.NodeCheck) -> None:
    async def check_node(_: CheckedPlaces) -> store.NodeCheck:
        return check

    monkeypatch.setattr(check_table, "check_node", check_node)


def test_without_a_command_this_machine_is_checked_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = holdfast("run", "--preflight", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["failures"] == []
    assert printed["unmeasured"] or {figure["kind"] for figure in printed["figures"]} >= {"disk", "cpu_gemm"}
    assert list(tmp_path.iterdir()) == []


def test_the_table_shows_figures_faults_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    check = store.NodeCheck(unmeasured="process 7 (x) computes on GPU 1")
    check.figures.add(kind=store.CHECK_KIND_CPU_MEMORY, value=1.25e10)
    check.figures.add(kind=store.CHECK_KIND_GPU_GEMM, device=3, value=7.1e14)
    check.failures.add(kind=store.CHECK_KIND_DISK, reason="/data has only 12.0 MiB free")
    check_with(monkeypatch, check)
    result = holdfast("run", "--preflight", columns=120)
    assert result.exit_code == 1
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "disk failed /data has only 12.0 MiB free" in lines
    assert "CPU memory 12.5 GB/s" in lines
    assert "GPU GEMM 710 TFLOP/s GPU 3, unproven" in lines
    assert "not measured: process 7 (x) computes on GPU 1" in lines


def test_with_a_command_in_the_file_the_flag_does_not_stand_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_with(monkeypatch, store.NodeCheck())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text('[run]\ncommand = ["/nowhere/train"]\n')
    result = holdfast("run", "--preflight")
    assert result.exit_code != 0
    assert "/nowhere/train" in result.stderr


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (store.CHECK_KIND_NETWORK, 25e9, "25 Gbit/s"),
        (store.CHECK_KIND_DISK, 2e3, "2 kB/s"),
        (store.CHECK_KIND_CLOCK, -0.0123, "-0.012 s"),
    ],
)
def test_a_figure_has_its_unit(kind: store.CheckKind, value: float, text: str) -> None:
    assert figure_text(store.CheckFigure(kind=kind, value=value)) == text
