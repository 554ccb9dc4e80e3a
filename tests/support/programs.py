"""Programs and packages that only some tests need. A machine without one skips those tests, unless it must not.

``HOLDFAST_TEST_PROGRAMS=required``, as in CI, makes a missing one a failure: a machine that lacks it must not pass for
one on which everything was tried. ``HOLDFAST_TEST_FRAMEWORKS=required`` does so for the packages of
`make test-frameworks`.
"""

import importlib
import os
import shutil
from typing import Any, NoReturn

import pytest

PROGRAMS_VARIABLE = "HOLDFAST_TEST_PROGRAMS"
FRAMEWORKS_VARIABLE = "HOLDFAST_TEST_FRAMEWORKS"

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
C_COMPILER = ("cc", "gcc")
ALERTMANAGER = "prometheus-alertmanager"
NODE_EXPORTER = "prometheus-node-exporter"
PROGRAMS = ("prometheus", "promtool", "amtool", ALERTMANAGER, NODE_EXPORTER, "ip", "nsenter", "node", CHROMIUM[0], "cc")
"""All of them, by their first names."""
_PACKAGES = {
    "prometheus": "prometheus", "promtool": "prometheus", "amtool": ALERTMANAGER, "ip": "iproute2",
    "nsenter": "util-linux", "node": "nodejs", "cc": "gcc libc6-dev",
}  # fmt: skip
"""Program -> packages of Debian, if they are named differently."""


def find(*names: str) -> str | None:
    """Return the path of the first of these programs that is installed, or None."""
    return next(filter(None, map(shutil.which, names)), None)


def find_chromium() -> str | None:
    """Return the path of Chromium or Chrome, or None."""
    return find(*CHROMIUM)


def are_required() -> bool:
    """Return whether a missing program is a failure."""
    return os.environ.get(PROGRAMS_VARIABLE) == "required"


def program(*names: str) -> str:
    """Return the path of the first of these programs that is installed. Without one, the test is left out."""
    return find(*names) or _leave_out(_missing(*names), PROGRAMS_VARIABLE)


def chromium_path() -> str:
    """Return the path of Chromium or Chrome. Without one, the test is left out."""
    return program(*CHROMIUM)


def needs(*programs: str) -> pytest.MarkDecorator:
    """Return a mark for tests that run these programs. Where they are required, the test runs and fails without one."""
    missing = [name for name in programs if find(name) is None]
    return pytest.mark.skipif(bool(missing) and not are_required(), reason=", ".join(map(_missing, missing)))


def package(name: str) -> Any:
    """Return an imported package of an extra of Holdfast. Without it, the test is left out."""
    return _imported(name, "install Holdfast with the extras all and dev, as `make setup` does", PROGRAMS_VARIABLE)


def framework(name: str) -> Any:
    """Return an imported package of `make test-frameworks`. Without it, the test, or the file, is left out.

    All tiers read these files, to find out which tests are theirs. So these packages have a variable of their own.
    """
    return _imported(name, "run `make test-frameworks`", FRAMEWORKS_VARIABLE)


def _imported(name: str, fix: str, variable: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:  # it is there, and lacks another one
            raise
    return _leave_out(f"needs {name}: {fix}", variable)


def _leave_out(reason: str, variable: str) -> NoReturn:
    if os.environ.get(variable) == "required":
        pytest.fail(f"{reason} ({variable}=required)", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def _missing(*names: str) -> str:
    packages = _PACKAGES.get(names[0], names[0])
    return f"{' or '.join(names)} is not installed (Debian: apt-get install {packages})"
