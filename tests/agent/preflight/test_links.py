import socket
from pathlib import Path

import psutil
import pytest

from holdfast_agent.preflight import links
from holdfast_agent.preflight.outcomes import NodeFaultError, UnmeasuredError


def interface(folder: Path, *, is_hardware: bool = True, **files: str) -> Path:
    """Make the folder of an interface in sysfs."""
    path = folder / "sys/class/net/eth7"
    path.mkdir(parents=True)
    if is_hardware:
        (path / "device").mkdir()
    for name, text in files.items():
        (path / name).write_text(f"{text}\n")
    return path


def port(root: Path, device: str, state: str, link: str, layer: str = "InfiniBand") -> None:
    path = root / "sys/class/infiniband" / device / "ports/1"
    path.mkdir(parents=True)
    for name, text in {"state": state, "phys_state": link, "link_layer": layer}.items():
        (path / name).write_text(f"{text}\n")


def test_bytes_pass_over_loopback() -> None:
    assert links.loopback() > 0


def test_no_connection_over_loopback_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("forbidden here")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(UnmeasuredError, match="forbidden here"):
        links.loopback()


@pytest.mark.parametrize(("speed", "rate"), [("25000", 25e9), ("-1", None), ("0", None), ("", None)])
def test_the_rate_of_a_link_is_known_if_the_interface_says_it(tmp_path: Path, speed: str, rate: float | None) -> None:
    assert links.link_rate(interface(tmp_path, carrier="1", speed=speed)) == rate


def test_hardware_without_a_carrier_is_a_fault_and_a_virtual_interface_is_none(tmp_path: Path) -> None:
    with pytest.raises(NodeFaultError, match=r"the link of eth7, which has the node's address, is down"):
        links.link_rate(interface(tmp_path / "a", carrier="0"))
    assert links.link_rate(interface(tmp_path / "b", carrier="0", is_hardware=False)) is None
    assert links.link_rate(tmp_path / "c/eth7") is None


def test_the_interface_is_the_one_with_the_nodes_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Address:
        address = "192.0.2.7"

    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": [], "eth7": [Address()]})
    interface(tmp_path, carrier="1", speed="100000")
    assert links.network("192.0.2.7", tmp_path) == 100e9
    assert links.network("127.0.0.1", tmp_path) is None
    assert links.network("192.0.2.8", tmp_path) is None


def test_a_port_that_its_fabric_leaves_out_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_SETTLING_S", 0.0)
    port(tmp_path, "mlx5_0", "4: ACTIVE", "5: LinkUp")
    port(tmp_path, "mlx5_1", "2: INIT", "5: LinkUp")
    with pytest.raises(NodeFaultError, match="port 1 of mlx5_1 has a link and is INIT"):
        links.network("127.0.0.1", tmp_path)


@pytest.mark.parametrize(
    "ports",
    [
        {"mlx5_0": ("4: ACTIVE", "5: LinkUp"), "mlx5_1": ("1: DOWN", "2: Polling")},
        {"mlx5_0": ("4: ACTIVE", "5: LinkUp"), "mlx5_1": ("1: DOWN", "3: Disabled")},
        {"mlx5_0": ("2: INIT", "5: LinkUp"), "mlx5_1": ("2: INIT", "5: LinkUp")},
        {"mlx5_0": ("4: ACTIVE", "5: LinkUp"), "mlx5_1": ("1: DOWN", "5: LinkUp", "Ethernet")},
    ],
    ids=["no cable", "switched off", "no fabric", "Ethernet"],
)
def test_a_port_that_is_not_used_is_no_fault(tmp_path: Path, ports: dict[str, tuple[str, ...]]) -> None:
    for device, texts in ports.items():
        port(tmp_path, device, *texts)
    assert links.infiniband_fault(tmp_path / "sys/class/infiniband") == ""
