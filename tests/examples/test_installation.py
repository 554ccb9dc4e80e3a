"""From ``pip install`` to the first verdict, as the page on frameworks promises it: in five minutes."""

import site
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from tests.support.first_verdict import ROOT, first_verdict

pytestmark = pytest.mark.system

LIMIT_S = 300.0
"""What the page promises. Downloads are not part of it: here every dependency is on this machine."""


def make_environment(folder: Path) -> Path:
    """Make an environment that has the dependencies of this one, and not Holdfast; return its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    packages = Path(output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    # Plain lines show packages. They do not follow the path files there, and one of those shows Holdfast's sources.
    shown = [path for path in sys.path if path.endswith("-packages")] or site.getsitepackages()
    (packages / "dependencies.pth").write_text("\n".join(shown) + "\n")
    # A dependency that is a program, and no module that a path file could show.
    (folder / "bin" / "py-spy").symlink_to(Path(sys.executable).with_name("py-spy").resolve())
    return python


def output(python: Path, *arguments: str) -> str:
    done = subprocess.run([python, *arguments], cwd="/", capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_from_the_installation_to_the_first_verdict_it_takes_less_than_five_minutes(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    python = make_environment(tmp_path / "environment")
    without = "import importlib.util as u; print([u.find_spec(n) for n in ('holdfast_agent', 'holdfast_hooks')])"
    assert output(python, "-c", without) == "[None, None]"
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed", "--quiet")
    output(python, "-m", "pip", "install", *offline, str(ROOT))
    installed = output(python, "-c", "import holdfast_cli, holdfast_hooks; print(holdfast_hooks.__file__)")
    assert Path(installed).is_relative_to(tmp_path)
    assert "observe" in output(python.with_name("holdfast"), "--help")

    runs = tmp_path / "runs"
    runs.mkdir()
    printed = first_verdict(runs, "no_line.py", "1000000", flags=("--auto",), python=str(python))
    assert "rank 1 is stopped in " in printed
    assert "at main (no_line.py:" in printed
    assert time.monotonic() - begun_s < LIMIT_S
