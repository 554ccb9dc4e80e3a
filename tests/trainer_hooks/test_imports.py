"""The hooks with only the packages that `pip install` brings without any extra."""

from tests.trainer_hooks.conftest import run_python

OPTIONAL = ("numpy", "xxhash", "zstandard", "redis", "psutil", "prometheus_client", "rich", "typer", "pydantic")

IMPORT = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ImportError(name + " is not installed")

sys.meta_path.insert(0, Refuse())
import holdfast_hooks, holdfast_hooks.sidecar, holdfast_hooks.faults
print(sorted(name for name in {OPTIONAL!r} if name in sys.modules))
"""


def test_the_hooks_import_without_any_package_of_the_other_components() -> None:
    done = run_python(IMPORT)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_refusal_works() -> None:
    done = run_python(IMPORT.replace("import holdfast_hooks,", "import xxhash, holdfast_hooks,"))
    assert "xxhash is not installed" in done.stderr
