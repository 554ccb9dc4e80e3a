"""The folder of ``--auto`` on the path of Pythons in which Holdfast is not installed: nothing of a script changes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_hooks.auto.arming import python_path
from holdfast_proto.rank_context import RankContext

SCRIPT = """
import sys
sys.stdout.write("%s %s\\n" % (sys.argv[1:], sorted(name for name in sys.modules if "holdfast" in name)))
sys.exit(3)
"""
USERS_SITE = "import sys\nsys.stdout.write('own sitecustomize\\n')\n"
A_GROUP = """
import sys
sys.path.insert(0, sys.argv[1])
import torch.distributed as dist
sys.stdout.write("%s %s\\n" % (dist.init_process_group("gloo"), dist.destroy_process_group()))
"""
GROUPS = """
class GroupMember(object):
    WORLD = None
def init_process_group(backend):
    return "began"
def destroy_process_group(group=None):
    return "ended"
"""


def pythons() -> list[Path]:
    """Return the Pythons of other versions that are here: those of pyenv, and those on the PATH."""
    own = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    names = [f"python3.{minor}" for minor in range(6, 16)] + ["python2.7"]
    found: dict[str, Path] = {}
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for name in names:
        installed = sorted(root.glob(f"versions/*/bin/{name}"))
        on_path = shutil.which(name)
        # A shim of pyenv starts nothing in a folder that asks for another version.
        if installed:
            found[name] = installed[0]
        elif on_path is not None and ".pyenv/shims" not in on_path:
            found[name] = Path(on_path)
    return [path for name, path in found.items() if name != own]


PYTHONS = pythons()
EACH = pytest.mark.parametrize("python", PYTHONS, ids=[path.name for path in PYTHONS])


def environment(first: Path, *, auto: bool) -> dict[str, str]:
    """Return what a launcher hands its ranks. ``first``: a folder of the user's on the path."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST", "COV"))
    }
    inherited["PYTHONDONTWRITEBYTECODE"] = "1"  # Python 2 writes next to the file, into our sources
    if not auto:
        return {**inherited, "PYTHONPATH": str(first)}
    context = RankContext(run="test", generation=1, agent="unix:/none", black_box="/none", observed=True, auto=True)
    rank = {"RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": python_path(str(first))}
    return {**inherited, **context.to_environment(), **rank}


def outcome(python: Path, *arguments: str, first: Path, auto: bool) -> tuple[int, str, str]:
    done = subprocess.run(
        [str(python), *arguments],
        env=environment(first, auto=auto),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@EACH
def test_a_script_ends_as_without_us_and_the_sitecustomize_of_the_user_runs(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "sitecustomize.py").write_text(USERS_SITE)
    without = outcome(python, str(script), "a b", first=tmp_path, auto=False)
    assert without == (3, "own sitecustomize\n['a b'] []\n", "")
    code, stdout, stderr = outcome(python, str(script), "a b", first=tmp_path, auto=True)
    # The one module that waits for torch is the only thing that is there.
    assert (code, stdout.replace("['holdfast_arming']", "[]"), stderr) == without


@EACH
@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_does_not_look_at_the_path_has_nothing_of_us(python: Path, flag: str, tmp_path: Path) -> None:
    if python.name == "python2.7" and flag == "-I":
        pytest.skip("it has no -I")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert outcome(python, flag, str(script), first=tmp_path, auto=True) == (3, "[] []\n", "")


@EACH
def test_a_rank_says_in_one_line_what_is_missing_and_trains(python: Path, tmp_path: Path) -> None:
    package = tmp_path / "packages" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("from torch.distributed.distributed_c10d import *\n")
    (package / "distributed_c10d.py").write_text(GROUPS)
    script = tmp_path / "script.py"
    script.write_text(A_GROUP)
    code, stdout, stderr = outcome(python, str(script), str(tmp_path / "packages"), first=tmp_path, auto=True)
    assert (code, stdout) == (0, "began ended\n")
    if python.name == "python2.7":
        assert stderr == ""  # it has no importlib.util, so nothing waits for torch
    else:
        assert re.fullmatch(r"holdfast: rank 0 is not attached: .*No module named '?holdfast_hooks'?.*\n", stderr)
