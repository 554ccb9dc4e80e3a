"""What `make test-torch` makes of TORCH: one folder below build/, and nothing if TORCH is no version."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# In place of a Python: it makes an environment whose pip knows torch 2.14.1 only. Each program there is a script, too.
_PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p "$3/bin"
printf '%s\\n' '#!/bin/sh' 'case "$*" in *torch==2.14.1) touch "${0%/*}/torch";; *) exit 1;; esac' >"$3/bin/pip"
printf '%s\\n' '#!/bin/sh' '[ "$1" != -c ] || [ -e "${0%/*}/torch" ]' >"$3/bin/python"
chmod +x "$3/bin/pip" "$3/bin/python"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the Makefile, two levels below ``tmp_path``."""
    folder = tmp_path / "a" / "clone"
    folder.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    python = folder / "python"
    python.write_text(_PYTHON)
    python.chmod(0o755)
    return folder


def make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make with the stand-in for Python."""
    command = ["make", "--no-print-directory", f"PYTHON={clone / 'python'}", *arguments]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False, timeout=60)


def files(folder: Path) -> list[Path]:
    """Return everything below a folder."""
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize(
    "torch",
    ["../../x y", "../../x", "nonsense", "", ".", "2.14.1 ", "2.14.1 x", "2", "2.14.1/", "-r x", "2.14.1;x", "2.1'4"],
)
@pytest.mark.parametrize("goal", ["test-torch", "test-torch-all"])
def test_a_torch_that_is_no_version_is_refused_in_one_line_before_anything_is_made(
    clone: Path, goal: str, torch: str
) -> None:
    before = files(clone.parents[1])
    ended = make(clone, goal, f"TORCH={torch}")
    assert ended.returncode != 0
    said = f"TORCH='{torch}' is not a version of torch: give one such as TORCH=2.14.1"
    assert re.fullmatch(rf"Makefile:\d+: \*\*\* {re.escape(said)}\.  Stop\.\n", ended.stderr)
    assert ended.stdout == ""
    assert files(clone.parents[1]) == before


@pytest.mark.parametrize("torch", ["2.14.1", "2.15", "2.14.1rc2", "2.14.1+cpu", "2.15.0.dev20261101+cu132"])
def test_versions_of_torch_are_taken(clone: Path, torch: str) -> None:
    ended = make(clone, "--dry-run", "test-torch", f"TORCH={torch}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"build/torch-{torch}/bin/pip install --quiet torch=={torch}" in ended.stdout


def test_a_version_that_cannot_be_installed_leaves_no_environment(clone: Path) -> None:
    ended = make(clone, "test-torch", "TORCH=99.9")
    assert ended.returncode != 0
    assert ended.stdout == (
        "torch 99.9 cannot be installed: the lines above say why. Name another version with TORCH=\n"
    )
    assert not (clone / "build" / "torch-99.9").exists()


def test_an_environment_that_has_a_torch_stays_if_it_cannot_be_brought_up_to_date(clone: Path) -> None:
    assert make(clone, "test-torch", "TORCH=2.14.1").returncode == 0
    environment = clone / "build" / "torch-2.14.1"
    assert (environment / ".ready").exists()
    environment.rename(clone / "build" / "torch-2.14.2")
    (clone / "build" / "torch-2.14.2" / ".ready").unlink()
    assert make(clone, "test-torch", "TORCH=2.14.2").returncode != 0
    assert (clone / "build" / "torch-2.14.2" / "bin" / "torch").exists()
