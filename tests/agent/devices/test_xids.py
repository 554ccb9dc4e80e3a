import re
from pathlib import Path

import pytest

from holdfast_agent.devices.xids import _TABLE, XidKind, xid_of

OFF_THE_BUS = "NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "number", "bus_id", "pid"),
    [
        (OFF_THE_BUS, 79, "0000:41:00.0", 1234),
        ("NVRM: Xid (PCI:0000:C1:00): 31, pid='<unknown>', name=<unknown>, MMU Fault", 31, "0000:c1:00.0", 0),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 13, pid=7, Graphics Exception", 13, "0000:01:00.0", 7),
        ("NVRM: Xid (PCI:00000001:00:00.0): 119, Timeout after 6s of waiting for RPC", 119, "0001:00:00.0", 0),
        ("nvidia 0000:41:00.0: NVRM: Xid (PCI:0000:41:00): 48, pid='12', DBE", 48, "0000:41:00.0", 12),
    ],
)
def test_a_line_of_the_driver_names_the_error_the_gpu_and_the_process(
    line: str, number: int, bus_id: str, pid: int
) -> None:
    xid = xid_of(line)
    assert xid is not None
    assert (xid.number, xid.bus_id, xid.pid) == (number, bus_id, pid)
    assert xid.line.startswith("NVRM: Xid (PCI:")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU at PCI:0000:41:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
        "NVRM: Xid (PCI:0000:41:00): none",
        "python[12]: Xid (PCI:0000:41:00): 79",
        "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "",
    ],
)
def test_other_lines_are_no_xids(line: str) -> None:
    assert xid_of(line) is None


def test_a_line_may_be_as_long_as_it_likes() -> None:
    xid = xid_of(f"{OFF_THE_BUS} {'x' * 10_000}")
    assert xid is not None and len(xid.line) == 400


def test_errors_of_the_gpu_and_errors_of_a_program_are_told_apart() -> None:
    def kind(number: int) -> XidKind:
        xid = xid_of(f"NVRM: Xid (PCI:0000:41:00): {number}, pid=1")
        assert xid is not None
        return xid.kind

    assert [kind(number) for number in (48, 79, 95, 119)] == [XidKind.FATAL] * 4
    assert [kind(number) for number in (13, 31, 43, 94)] == [XidKind.PROCESS] * 4
    # A process that was killed leaves 45. It is no reason for its end.
    assert [kind(number) for number in (45, 63, 154, 9999)] == [XidKind.NOTICE] * 4


def test_the_page_lists_the_numbers_of_each_kind() -> None:
    page = (Path(__file__).parents[3] / "docs/devices.md").read_text()
    rows = {row.split("|")[1].strip(): row.split("|")[2] for row in page.splitlines() if row.startswith("| ")}
    listed = {kind: {int(number) for number in re.findall(r"\d+", numbers)} for kind, numbers in rows.items()}
    for kind, title in (
        (XidKind.FATAL, "the GPU, or a link of it, fails"),
        (XidKind.PROCESS, "the work of one process fails"),
        (XidKind.NOTICE, "anything else"),
    ):
        assert listed[title] == {number for number, (of, _) in _TABLE.items() if of is kind}
