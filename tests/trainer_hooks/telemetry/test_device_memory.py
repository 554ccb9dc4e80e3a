from pathlib import Path

import pytest

from holdfast_hooks.telemetry.device_memory import memory_limit_bytes

MIB = 1 << 20


def machine(root: Path, groups: str, **limits: str) -> Path:
    """Write the kernel's files of a machine with 8 MiB. The limits have paths below /sys/fs/cgroup."""
    files = {"proc/meminfo": "MemTotal:        8192 kB\nMemFree:  12 kB\n", "proc/self/cgroup": groups}
    for name, text in {**files, **{f"sys/fs/cgroup/{path}": limit for path, limit in limits.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {}, 8 * MIB),
        ("0::/pod/rank\n", {"pod/memory.max": f"{2 * MIB}\n", "pod/rank/memory.max": "max\n"}, 2 * MIB),
        ("0::/pod\n", {"pod/memory.max": f"{99 * MIB}\n"}, 8 * MIB),
        ("4:cpu,memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": f"{3 * MIB}\n"}, 3 * MIB),
        # In a container the group's path may be one of the host. Then the group itself is mounted.
        ("4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": f"{4 * MIB}\n"}, 4 * MIB),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, groups: str, limits: dict[str, str], expected: int) -> None:
    assert memory_limit_bytes(machine(tmp_path, groups, **limits)) == expected


def test_this_process_has_a_limit() -> None:
    assert memory_limit_bytes() > MIB
