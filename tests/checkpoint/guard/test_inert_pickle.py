"""No pickle runs code in the guard, and none takes it down."""

import argparse
import io
import itertools
import os
import pickle
import random
import resource
import signal
import timeit
import warnings
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.fsdp
import torch.distributed.tensor

from holdfast_checkpoint.guard.damage import DamagedFileError, Reason, UnsafePickleError
from holdfast_checkpoint.guard.folder_guard import Outcome
from holdfast_checkpoint.guard.inert_pickle import InertObject, load_inert, tensors_in
from tests.checkpoint.guard.conftest import INCOMPLETE_S, GuardedFolder
from tests.support.foreign_checkpoints import TinyTraining, save_dcp, save_huggingface


class Harmful:
    """Creates a file when it is unpickled."""

    def __init__(self, call: Any, *arguments: object) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


class Own:
    """A class that the guard does not know."""

    def __init__(self) -> None:
        self.inner = {"a": 1}


class Kind(Enum):
    """An enum of another package."""

    FIRST = "first"


def named(path: str) -> bytes:
    """Return the opcode that pushes a class or function. The last dot splits module and name, or a colon."""
    module, name = path.split(":") if ":" in path else path.rsplit(".", 1)
    return f"c{module}\n{name}\n".encode()


def called(path: str, arguments: bytes = b"U\x01x") -> bytes:
    """Return the opcodes of a call."""
    return named(path) + b"(" + arguments + b"tR"


def replacing(method: str) -> bytes:
    """Return the opcodes that give an object an attribute in place of a method."""
    return b"}U" + bytes([len(method)]) + method.encode() + named("timeit.timeit") + b"sb"


def stack_named(module: str, name: str) -> bytes:
    """Return the opcodes of a name that may have dots."""
    return b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, name)) + b"\x93"


FUNCTIONS = """
    os.system posix.system nt.system subprocess.Popen commands.getoutput pty.spawn shutil.rmtree runpy.run_path
    builtins.eval builtins.exec __builtin__.eval __builtin__.execfile builtins.compile io.open builtins.__import__
    builtins.getattr builtins.setattr builtins.map builtins.filter builtins.type builtins.print builtins.vars
    timeit.timeit timeit.repeat torch.hub.load torch.hub.load_state_dict_from_url torch.load torch.jit.load
    torch.storage._load_from_bytes torch.serialization.load torch.utils.cpp_extension.load_inline
    torch.fx.graph_module.reduce_graph_module torch.compile torch._dynamo.optimize torch.classes.load_library
    torch.utils.data.dataset.IterableDataset numpy.load numpy.fromfile numpy.testing._private.utils.runstring
    functools.partial functools.reduce operator.methodcaller operator.attrgetter operator.itemgetter code.interact
    cProfile.run profile.run pdb.run bdb.Bdb doctest.testfile trace.Trace threading.Thread multiprocessing.Process
    multiprocessing.util.spawnv_passfds _posixsubprocess.fork_exec asyncio.run webbrowser.open pickle.loads
    _pickle.loads marshal.loads shelve.open types.FunctionType types.CodeType zipimport.zipimporter
    importlib.import_module pkgutil.resolve_name pydoc.locate ctypes.CDLL site.main venv.create ensurepip.bootstrap
    distutils.spawn.spawn imp.load_source http.server.test urllib.request.urlopen socket.socket
    logging.config.fileConfig pathlib.Path:unlink tempfile.mktemp sqlite3.connect xmlrpc.client.ServerProxy
    smtplib.SMTP pip.main cloudpickle.loads joblib.load dill.loads some_package.module:os.system
    some_package.module:torch.hub.load
"""
"""Functions and classes that a plain checkpoint never calls."""

DANGEROUS = {
    **{path: called(path) for path in FUNCTIONS.split()},
    "name on the stack": stack_named("timeit", "timeit") + b"(tR",
    "name with dots": stack_named("torch.nn.modules.linear", "torch.hub.load") + b"(tR",
    "method of an allowed class": stack_named("pathlib", "Path.unlink") + b"(U\x01xtR",
    "imported by another package": stack_named("some_package.module", "subprocess.run") + b"(tR",
    "INST": b"(U\x01xitimeit\ntimeit\n",
    "OBJ": b"(" + named("timeit.timeit") + b"U\x01xo",
    "OBJ without arguments": b"(" + named("timeit.timeit") + b"o",
    "NEWOBJ": named("threading.Thread") + b")\x81",
    "NEWOBJ_EX": named("threading.Thread") + b")}\x92",
    "attribute of torch": called("builtins.getattr", named("torch._C._VariableFunctionsClass") + b"U\x04relu")
    + b"(U\x01xtR",
    "result of a call": called("some_package.Finder") + b"(U\x01xtR",
    "result of an allowed call": called("logging.getLogger") + b"(U\x01xtR",
    "__setstate__ of an object": named("some_package.Thing") + b")\x81" + replacing("__setstate__") + b"U\x01xb",
    "__setstate__ of a mapping": called("collections.OrderedDict", b"") + replacing("__setstate__") + b"U\x01xb",
    "append of an object": named("argparse.Namespace") + b")\x81" + replacing("append") + b"U\x01xa",
    "another class": named("argparse.Namespace") + b")\x81N" + replacing("__class__")[:-1] + b"\x86b",
    "function to rebuild with": named("torch._tensor._rebuild_from_type_v2") + b"(" + named("timeit.timeit") + b"N)NtR",
    "class to rebuild": named("copyreg._reconstructor") + b"(" + named("timeit.Timer") + named("timeit.Timer") + b"NtR",
    "constructor of numpy": called("numpy.random._pickle.__generator_ctor", b"U\x01x" + named("timeit.timeit")),
    "iteration over an object": called("builtins.list", named("some_package.Thing") + b")\x81"),
    "mapping of an object": called("collections.OrderedDict", named("some_package.Thing") + b")\x81"),
    "class of torch with a callback": called(
        "torch.optim.lr_scheduler.LambdaLR", named("some_package.Thing") + b")\x81" + named("timeit.timeit")
    ),
}  # fmt: skip


@pytest.mark.parametrize("opcodes", DANGEROUS.values(), ids=DANGEROUS)
def test_calls_that_no_checkpoint_needs_are_damage_wherever_the_pickle_ends(opcodes: bytes) -> None:
    for data in (b"\x80\x04" + opcodes + b".", b"\x80\x02]" + opcodes + b"a}U\x05", opcodes + b"."):
        with pytest.raises(UnsafePickleError):
            load_inert(data)


@pytest.mark.parametrize("call", [os.mkdir, timeit.timeit, torch.hub.load, getattr, Path.mkdir, numpy.load])
def test_the_message_names_the_call_and_what_to_do(call: Any, tmp_path: Path) -> None:
    data = pickle.dumps(Harmful(call, str(tmp_path / "made")))
    with pytest.raises(UnsafePickleError, match="which no checkpoint needs: do not load this file"):
        load_inert(data)
    assert list(tmp_path.iterdir()) == []


def test_functions_that_nobody_calls_are_no_harm() -> None:
    load_inert(pickle.dumps({"activation": torch.nn.functional.relu, "kind": int, "any": timeit.timeit}))


def test_classes_and_enums_of_other_packages_are_stand_ins_and_their_modules_are_named() -> None:
    modules: set[str] = set()
    found = load_inert(pickle.dumps({"a": Own(), "b": Kind.FIRST, "c": torch.float32}), modules)
    assert all(isinstance(found[name], InertObject) for name in "ab")
    assert modules == {__name__}


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_plain_checkpoints_hold_is_no_harm(protocol: int) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
    optimizer = torch.optim.AdamW(layer.parameters())
    plain = {
        "values": [{1, 2}, frozenset("a"), b"bytes", bytearray(b"more"), 1 + 2j, slice(1, 2), range(3)],
        "containers": [OrderedDict(a=1), defaultdict(list, {1: [2]}), Counter("aab"), deque([1], 3)],
        "library": [datetime.now(), timedelta(1), Path("a/b"), Decimal(1), argparse.Namespace(lr=1), io.BytesIO(b"x")],
        "numpy": [numpy.random.get_state(), numpy.random.default_rng(3), numpy.float64(3), numpy.arange(3.0)],
        "objects": numpy.array(["a", None], dtype=object),
        "torch": [torch.float8_e4m3fn, torch.device("cpu"), torch.Size([3]), torch.__version__],
        "numbers": [random.Random(1), itertools.count(3), signal.SIGTERM],
        "functions": [torch.relu, torch.nn.functional.gelu],
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3).state_dict(),
        "placement": [torch.distributed.tensor.Shard(0), torch.distributed.fsdp.ShardingStrategy.FULL_SHARD],
    }
    assert load_inert(pickle.dumps(plain, protocol)).keys() == plain.keys()
    buffer = io.BytesIO()
    saved = {"layer": layer, "optimizer": optimizer, "sparse": torch.eye(2).to_sparse(), "generator": torch.Generator()}
    torch.save({**saved, "parameter": torch.nn.Parameter(torch.ones(2))}, buffer, pickle_protocol=protocol)
    with zipfile.ZipFile(buffer) as archive:
        load_inert(archive.read("archive/data.pkl"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x04.",
        b"\x80\x04K",
        b"\x80\x04r\xff\xff\xff\x7f.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b".",
        b"(" * 1000,
        named("some_package.Thing") + b"N" + replacing("__setstate__")[:-1] + b"\x86b.",  # the state of a class
    ],
)
def test_damaged_pickles_are_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(DamagedFileError):
        load_inert(data)


def test_a_pickle_that_asks_for_gigabytes_gets_none() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(DamagedFileError, match="more memory than there is"):
        load_inert(b"\x80\x04K\x01r\xff\xff\xff\x7f.")  # entry 2,147,483,647 of a table
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_every_cut_and_many_changes_of_a_real_index_are_survived(training: TinyTraining, tmp_path: Path) -> None:
    data = (save_dcp(tmp_path, 1, training) / ".metadata").read_bytes()
    for end in range(0, len(data) - 1, 37):
        with pytest.raises(DamagedFileError):
            load_inert(data[:end])
    for place in range(0, len(data), 11):
        changed = bytearray(data)
        changed[place] ^= 0x5A
        try:
            load_inert(bytes(changed))
        except DamagedFileError:
            continue


def test_circles_and_shared_parts_end() -> None:
    shared: Any = [1]
    for _ in range(60):
        shared = [shared, shared]
    circle: list[Any] = [shared]
    circle.append(circle)
    assert list(tensors_in(load_inert(pickle.dumps(circle)))) == []


def test_tensors_are_found_in_whole_modules(tmp_path: Path) -> None:
    torch.save({"net": torch.nn.Linear(3, 2)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        found = dict(tensors_in(load_inert(archive.read("x/data.pkl"))))
    assert sorted(tensor.shape for tensor in found.values()) == [(2,), (2, 3)]


def save_zip(value: object, path: Path) -> None:
    torch.save({"state_dict": {"w": torch.ones(3)}, "x": value}, path)


def save_old(value: object, path: Path) -> None:
    torch.save({"state_dict": {"w": torch.ones(3)}, "x": value}, path, _use_new_zipfile_serialization=False)


def save_pickle_alone(value: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(value, 2))


def save_compressed(value: object, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", pickle.dumps(value, 2))


def save_twice(value: object, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, each in (("x/data.pkl", {}), ("y/data.pkl", value)):
            archive.writestr(name, pickle.dumps(each, 2))


@pytest.mark.parametrize("save", [save_zip, save_old, save_pickle_alone, save_compressed, save_twice])
def test_a_checkpoint_that_would_run_code_is_called_damaged(save: Any, guarded: GuardedFolder) -> None:
    save(Harmful(timeit.timeit, "pass"), guarded.folder / "step=1.ckpt")
    (judgment,) = guarded.look()
    assert [finding.reason for finding in judgment.findings] == [Reason.DAMAGED]
    if save not in (save_compressed, save_twice):
        assert "timeit.timeit, which no checkpoint needs: do not load this file" in judgment.findings[0].text


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "rng_state_0.pth", "training_args.bin", "random_states_0.pkl", "x.bin"]
)
def test_each_pickle_of_a_folder_is_checked(name: str, guarded: GuardedFolder) -> None:
    place = save_huggingface(guarded.folder, 10, guarded.training)
    save_pickle_alone(Harmful(timeit.timeit, "pass"), place / name)
    (judgment,) = guarded.look()
    assert [finding.reason for finding in judgment.findings] == [Reason.DAMAGED]
    assert judgment.findings[0].text.startswith(f"{name}: its pickle calls timeit.timeit")


def test_an_object_that_dcp_stores_is_checked(guarded: GuardedFolder) -> None:
    place = guarded.folder / "step-1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is one process only
        state = {"model": guarded.training.weights, "args": Harmful(timeit.timeit, "pass")}
        dcp.save(state, checkpoint_id=place)  # type: ignore[attr-defined]
    (judgment,) = guarded.look()
    assert [finding.reason for finding in judgment.findings] == [Reason.DAMAGED]
    assert "item args: its pickle calls timeit.timeit" in judgment.findings[0].text


def test_a_file_that_would_run_code_gets_no_time_to_be_finished(guarded: GuardedFolder) -> None:
    guarded.look()
    save_zip(Harmful(timeit.timeit, "pass"), guarded.folder / "step=1.ckpt")
    assert [each.outcome for each in guarded.settle()] == [Outcome.BAD]


def test_objects_of_other_packages_are_named_and_no_damage(guarded: GuardedFolder) -> None:
    save_zip([Own(), Kind.FIRST], guarded.folder / "step=1.ckpt")
    (judgment,) = guarded.look()
    assert judgment.outcome is Outcome.GOOD
    assert judgment.examined is not None
    assert judgment.examined.inventory.unchecked == [f"objects of {__name__}"]


def test_a_file_of_old_torch_is_good_until_its_storages_are_cut_off(guarded: GuardedFolder) -> None:
    path = guarded.folder / "step=1.ckpt"
    save_old(None, path)
    assert [each.outcome for each in guarded.look()] == [Outcome.GOOD]
    os.truncate(path, path.stat().st_size - 1)
    (judgment,) = [*guarded.settle(), *guarded.look(INCOMPLETE_S)]
    assert "is needed" in judgment.findings[0].text


def test_an_index_cannot_lead_out_of_its_folder(guarded: GuardedFolder) -> None:
    path = save_dcp(guarded.folder, 1, guarded.training) / ".metadata"
    path.write_bytes(path.read_bytes().replace(b"__0_0.distcp", b"../../passwd"))
    (judgment,) = guarded.look()
    assert "names a file outside of its folder" in judgment.findings[0].text


def test_files_of_random_bytes_are_damage(guarded: GuardedFolder) -> None:
    rng = io.BytesIO(bytes(range(256)) * 40)
    for number, start in enumerate((b"PK\x03\x04", b"\x80\x02", b"", b"\x00" * 8)):
        place = guarded.folder / f"checkpoint-{number}"
        place.mkdir()
        for name in ("model.safetensors", "optimizer.pt", ".metadata", "model.safetensors.index.json"):
            (place / name).write_bytes(start + rng.getvalue())
        (place / "trainer_state.json").write_text("{}")
    found = guarded.look()
    assert len(found) == 4
    assert all(finding.reason is Reason.DAMAGED for each in found for finding in each.findings)
    assert all(each.findings for each in found)
