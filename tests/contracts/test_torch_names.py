"""Does this torch still have the private names that our code uses, and do they behave as it needs?"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.private_uses import Use, own_names, uses
from tests.contracts.torch_names import NAMES, TorchName
from tests.trainer.world_of_one import world_of_one

REPOSITORY = Path(__file__).parents[2]
FOLDERS = (
    *("proto", "checkpoint", "trainer_hooks", "agent", "daemon", "trainer", "cli"),
    *("benchmarks", "examples", "dashboards"),
)
FRAMEWORKS = REPOSITORY / "trainer_hooks" / "holdfast_hooks" / "frameworks"
"""Its private names are of other projects: tests/frameworks checks them."""
PICKLED_NAMES = REPOSITORY / "checkpoint" / "holdfast_checkpoint" / "guard" / "pickled_names.py"
"""Names in the files of any version of torch. Nothing looks them up."""
NOT_OF_TORCH = {
    "_allgather_base": "a call in recorders",
    "_all_gather_base": "a call in recorders",
    "_reduce_scatter_base": "a call in recorders",
    "_bucket": "end of the name of a metric",
    "_compositor": "textual's",
    "_budget": "end of the name of a setting",
    "_created": "end of the name of a metric",
    "_dashboards": "a folder in the wheel",
    "_s": "end of the name of a setting",
    "_strip_protocol": "fsspec's",
}
"""Words that look like private names, and what they are."""


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    with world_of_one():
        yield


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.path)
def test_torch_has_it_and_it_behaves_as_our_code_needs(name: TorchName, world: None) -> None:
    name.check()


def source_files() -> list[Path]:
    files = (path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py"))
    ours = (path for path in files if not (path.is_relative_to(FRAMEWORKS) or path == PICKLED_NAMES))
    return sorted(path for path in ours if not path.stem.endswith(("_pb2", "_pb2_grpc")))


def is_listed(name: str) -> bool:
    """Whether the list has a name: a whole path, or the part of one that it begins with; or a bare last word."""
    if "." in name:
        return any(f"{listed.path}.".startswith(f"{name}.") for listed in NAMES)
    return any(listed.last_word == name for listed in NAMES)


def test_every_private_name_of_torch_in_our_code_is_in_the_list() -> None:
    texts = {path: path.read_text() for path in source_files()}
    own = own_names(texts.values())
    found = [use for path, text in texts.items() for use in uses(path.relative_to(REPOSITORY), text, own)]
    assert any(use.name == "torch.distributed.distributed_c10d._world" for use in found)
    unknown = [str(use) for use in found if use.name not in NOT_OF_TORCH and not is_listed(use.name)]
    assert unknown == [], "add them to tests/contracts/torch_names.py, each with a check of how it behaves"


FOREIGN = '''"""A text about ``_words``."""
import os, sys
import torch
import torch.distributed as dist
from torch import _inductor
from torch._C import Tag
from torch.distributed import tensor

class Watch:
    def __init__(self, group):
        self._own = group._elsewhere
        self.inner._own, os._exit, tensor._api.cut

def look(group, bindings, _ours=1):
    dist._functional.cut(torch.ops._other.cut)
    sys.modules["torch"]._C._dump(getattr(bindings, "_dump_json", None), _ours)
    "_no".join(group.backend._options[0]._part)
'''


def test_a_private_name_is_found_however_it_is_reached() -> None:
    found = uses(Path("foreign.py"), FOREIGN, own_names([FOREIGN]))
    assert sorted(found) == [
        Use("foreign.py", 5, "torch._inductor"),
        Use("foreign.py", 6, "torch._C.Tag"),
        Use("foreign.py", 11, "_elsewhere"),
        Use("foreign.py", 12, "torch.distributed.tensor._api.cut"),
        Use("foreign.py", 15, "torch.distributed._functional.cut"),
        Use("foreign.py", 15, "torch.ops._other.cut"),
        Use("foreign.py", 16, "_dump_json"),
        Use("foreign.py", 16, "torch._C._dump"),
        Use("foreign.py", 17, "_no"),
        Use("foreign.py", 17, "_options"),
        Use("foreign.py", 17, "_part"),
    ]


def test_a_protocol_does_not_make_a_name_ours() -> None:
    assert own_names(["class Group(Protocol):\n    def _seq(self): ...", "class A:\n    _b = 1"]) == {"_b"}


def test_each_name_is_listed_once() -> None:
    paths = [name.path for name in NAMES]
    assert len(paths) == len(set(paths))


def test_the_page_lists_every_name_by_the_feature_that_needs_it() -> None:
    page = (REPOSITORY / "docs" / "torch-versions.md").read_text()
    rows = dict(re.findall(r"^\| (.+?) \| .*? \| (.+?) \|$", page, re.MULTILINE))
    for lost in sorted({name.lost for name in NAMES}):
        shown = re.findall(r"`([^`]+)`", rows[lost])
        assert sorted(shown) == sorted({name.last_word for name in NAMES if name.lost == lost}), lost
