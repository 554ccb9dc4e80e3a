import json
import math
from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch

from holdfast_hooks.snapshots.slot_layout import LaidOutMeta, SlotTensors, lay_out, place
from holdfast_hooks.state.encoding import decode_state, encode_state
from holdfast_hooks.state.tree import check_tree
from holdfast_proto.snapshot import Meta, Slot, align


def round_trip(value: Any) -> Any:
    image = encode_state({"value": value})
    tree = json.loads(json.dumps(image.tree, allow_nan=False))
    return decode_state(tree, lambda kind, index: image.parts[index].local)["value"]


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**80), 1.5, -0.0, math.inf, -math.inf, "", "ü\x00", b"", b"\x00\xff",
        [], (), {}, [1, (2, [3])], (1,), {"a": 1}, {1: "int", "1": "string"}, {(0, "x"): [None]},
        {True: 1, None: 2}, {"tensor": 0}, {"dict": []}, OrderedDict(b=1, a=2), Counter({3: 2}),
        {"nested": {"deep": ({"x": (b"y", [1.0])},)}},
    ],
    ids=repr,
)  # fmt: skip
def test_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    back = round_trip(value)
    assert (back, repr(back)) == (value, repr(value))


def test_nan_comes_back_as_nan() -> None:
    assert math.isnan(round_trip([math.nan])[0])


def test_mappings_keep_the_names_that_checkpoints_on_disk_have_for_them() -> None:
    state = {"a": OrderedDict(x=1), "b": Counter("z")}
    assert encode_state(state).tree == {
        "dict": [["a", {"ordered": [["x", 1]]}], ["b", {"counter": [["z", 1]]}]],
    }


def test_a_tree_that_was_encoded_is_sound() -> None:
    one = torch.ones(1)
    image = encode_state({"a": {(0, "x"): [one], True: (one, b"x", math.nan)}, "": [{"": one}, {"b": Counter("z")}]})
    check_tree(json.loads(json.dumps(image.tree)), [part.name for part in image.parts])


@pytest.mark.parametrize(
    "tree",
    [
        [], {}, {"tuple": []}, {"dict": [["a"]]}, {"dict": [[[], 1]]}, {"dict": [["a", {"float": "x"}]]},
        {"dict": [["a", {"bytes": "x"}]]}, {"dict": [["a", {"unknown": 1}]]}, {"dict": [["a", {"tensor": 1}]]},
        {"dict": [["b", {"tensor": 0}]]}, {"dict": [["a", {"tensor": True}]]}, {"dict": []},
        {"dict": [["a", {"tensor": 0}], ["a", {"tensor": 0}]]}, {"dict": [["a", json.loads("[" * 200 + "]" * 200)]]},
    ],
    ids=lambda tree: str(tree)[:40],
)  # fmt: skip
def test_another_tree_is_refused(tree: Any) -> None:
    with pytest.raises(ValueError, match=r"its state|could not convert|base64"):
        check_tree(tree, ["a"])


def test_tensors_are_numbered_in_order_and_named_by_their_place() -> None:
    image = encode_state({"model": OrderedDict({"0.weight": torch.ones(2)}), "data": {"seen": [torch.zeros(1)]}})
    assert [part.name for part in image.parts] == ["model/0.weight", "data/seen/0"]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": [object()]}, "value/a/0: a value of type object"),
        ({"a": {1, 2}}, "value/a: a value of type set"),
        ({"a": torch.ones(2, 2).to_sparse()}, "value/a: a value of type Tensor"),
        ({"a": torch.ones(2, device="meta")}, "value/a: a value of type Tensor"),
        ({"a": lambda: 0}, "value/a: a value of type function"),
        ({torch.ones(1): 1}, "value: a key of type Tensor"),
        ({"a": {1.5: 1}}, "value/a: a key of type float"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_encoded_is_named(value: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        encode_state({"value": value})


def test_numpy_arrays_come_back_as_arrays() -> None:
    numpy = pytest.importorskip("numpy")
    for array in (numpy.arange(6.0).reshape(2, 3)[:, ::-1], numpy.array(3, dtype=">i4"), numpy.zeros((0, 2))):
        back = round_trip(array).numpy()
        assert numpy.array_equal(back, array) and back.shape == array.shape


TENSORS = {
    "float32": torch.randn(3, 4),
    "zero_dim": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 3),
    "bool": torch.tensor([True, False]),
    "bfloat16": torch.randn(5).bfloat16(),
    "float8": torch.randn(7).to(torch.float8_e4m3fn),
    "uint16": torch.tensor([1, 2, 65535], dtype=torch.uint16),
    "complex": torch.randn(2, 2, dtype=torch.complex64),
    "conjugate": torch.randn(2, dtype=torch.complex64).conj(),
    "negative": torch.randn(2, dtype=torch.complex64).conj().imag,
    "transposed": torch.randn(3, 4).t(),
    "transposed_parameter": torch.nn.Parameter(torch.randn(3, 4).t()),
    "strided": torch.randn(8)[::2],
    "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "nan": torch.tensor([math.nan, -math.inf]),
    "parameter": torch.nn.Parameter(torch.randn(2)),
}


def test_tensors_of_every_kind_come_back_bit_by_bit(make_slots: Any) -> None:
    image = encode_state(TENSORS)
    layout = lay_out(image, None)
    (path,) = make_slots(1)
    with Slot(path) as slot:
        slot.begin(generation=0, step=0, rank=0)
        SlotTensors(slot, layout.entries).copy(image.parts)
        slot.commit(LaidOutMeta.of(image.tree, layout, {}), data_bytes=layout.data_bytes, persist=False)
    with Slot(path) as slot:
        for entry in slot.meta().tensors:
            expected = TENSORS[entry.name].detach().resolve_conj().resolve_neg().contiguous()
            stored = place(slot, entry)
            found = torch.empty_like(expected) if stored is None else stored.clone()
            assert entry.offset == align(entry.offset)
            assert (entry.shape, f"torch.{entry.dtype}") == (tuple(expected.shape), str(expected.dtype))
            bits, expected_bits = (tensor.reshape(-1).view(torch.uint8) for tensor in (found, expected))
            assert torch.equal(bits, expected_bits), entry.name


def test_layout_is_kept_until_a_tensor_changes_its_form() -> None:
    first = lay_out(encode_state({"a": torch.zeros(3)}), None)
    assert lay_out(encode_state({"a": torch.ones(3)}), first) is first
    assert lay_out(encode_state({"a": torch.ones(3), "b": torch.ones(1)}), first) is not first
    assert lay_out(encode_state({"a": torch.ones(3).half()}), first) is not first


def test_meta_is_encoded_as_the_contract_says() -> None:
    image = encode_state({"a": torch.zeros(2, 3), "b": ("ü", torch.ones(1))})
    layout = lay_out(image, None)
    encoded = LaidOutMeta.of(image.tree, layout, {"dp": 1}).encode()
    assert encoded == Meta(image.tree, layout.entries, coordinates={"dp": 1}).encode()
    assert Meta.decode(encoded) == Meta(image.tree, layout.entries, coordinates={"dp": 1})
