"""The command with only the packages that ``pip install`` brings without any extra."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from holdfast_cli.main import ENTRIES, INCIDENTS

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
OWN = "holdfast-torch"

CODE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {foreign!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
from holdfast_cli.command_line.declaring import load
from holdfast_cli.errors import CommandError
from holdfast_cli.main import app

for work in {works!r}:
    try:
        load("holdfast_cli.commands." + work)
    except CommandError as error:
        print(error)
app(["--help"])
"""


def brought(requirements: list[str]) -> set[str]:
    """Return the distributions that requirements bring, and what these require in turn."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += map(Requirement, metadata.requires(name) or [])
    return found


def foreign_modules() -> list[str]:
    """Return the modules of this environment that a plain installation lacks."""
    plain = brought(tomllib.loads(PROJECT.read_text())["project"]["dependencies"])
    owners = metadata.packages_distributions()
    return [module for module, names in owners.items() if not plain.union([OWN]) & set(map(canonicalize_name, names))]


def test_every_command_works_or_names_its_extra_in_one_line() -> None:
    works = sorted({entry.work for entry in (*ENTRIES, INCIDENTS)})
    code = CODE.format(foreign=foreign_modules(), works=works)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    missing, _, help_text = done.stdout.partition("Usage: ")
    assert "checkpoint" in help_text
    for line in missing.splitlines():
        assert re.match(
            r"this needs \w+: install .*(the extra trainer of holdfast-torch|holdfast-torch\[(top|tls)\])", line
        )
