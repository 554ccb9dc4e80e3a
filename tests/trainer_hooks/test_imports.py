"""The hooks with only the packages that `pip install` brings without any extra."""

import subprocess
import sys

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
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_refusal_works() -> None:
    code = IMPORT.replace("import holdfast_hooks,", "import xxhash, holdfast_hooks,")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "xxhash is not installed" in done.stderr
