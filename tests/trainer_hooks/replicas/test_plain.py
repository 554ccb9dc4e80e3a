"""Hashes of parameters that other ranks may hold alike."""

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.distributed as dist

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.replicas.pieces import PIECE_BYTES
from holdfast_hooks.replicas.plain import SAMPLE, PlainParameters
from holdfast_hooks.replicas.replica_check import ReplicaCheck, held_parameters
from holdfast_proto.v1.session_pb2 import StepRecord

EVERY_STEP = 1e9
"""Budget that is never exceeded."""


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    large = torch.randn(3 * PIECE_BYTES // 8, generator=generator)
    return {
        "large": large,
        "small": torch.randn(5, generator=generator),
        "half": torch.randn(7, generator=generator).half(),
    }


def hashes(plain: PlainParameters, step: int, portions: int = 1) -> dict[str, int]:
    return {name: int(total.item()) for name, total in plain.sums(step, portions).items()}


def test_the_sample_is_in_every_step_and_ranges_take_turns_until_all_were_summed() -> None:
    plain = PlainParameters(parameters())
    steps = [hashes(plain, step) for step in range(8)]
    assert all(SAMPLE in step for step in steps)
    words = 3 * PIECE_BYTES // 8
    half = PIECE_BYTES // 4
    ranges = {f"large[words 0:{half}]", f"large[words {half}:{words}]", "small", "half"}
    assert {name for step in steps for name in step} == {SAMPLE, *ranges}


def test_a_flipped_bit_changes_its_range_and_one_at_the_front_the_sample() -> None:
    tensors = parameters()
    plain = PlainParameters(tensors)
    before = hashes(plain, 0, portions=9)
    tensors["large"].view(torch.int32)[-1] ^= 1 << 31
    behind = hashes(plain, 0, portions=9)
    assert len([name for name in before if before[name] != behind[name]]) == 1
    assert before[SAMPLE] == behind[SAMPLE]
    tensors["small"].view(torch.int32)[0] ^= 1
    assert hashes(plain, 0)[SAMPLE] != behind[SAMPLE]


def test_two_parameters_that_have_changed_places_change_the_sample() -> None:
    one, other = torch.ones(4), torch.full((4,), 2.0)
    before, after = ({"a": one, "b": other}, {"a": other, "b": one})
    assert hashes(PlainParameters(before), 0)[SAMPLE] != hashes(PlainParameters(after), 0)[SAMPLE]


def test_many_small_parameters_share_parts_that_cover_all_of_them() -> None:
    tensors = {f"layer{index:04}": torch.full((4 + index % 7,), float(index)) for index in range(1000)}
    plain = PlainParameters(tensors)
    before = hashes(plain, 0, portions=10_000)
    assert len(before) <= 1 + 256
    for name, tensor in list(tensors.items())[::37]:
        tensor.view(torch.int32)[-1] ^= 1
        after = hashes(plain, 0, portions=10_000)
        (changed,) = [part for part in before if part != SAMPLE and before[part] != after[part]]
        first, _, last = changed.partition("..")
        assert first <= name <= last
        before = after


def test_parts_stay_few_with_many_parameters_of_all_sizes_and_with_a_large_one() -> None:
    sizes = [1, 3, 50_000, 300_000, 400_000]
    many = PlainParameters({f"layer{index:04}": torch.zeros(sizes[index % 5]) for index in range(1500)})
    assert len(many.sums(0, 10_000)) <= 1 + 3 * 256
    large = PlainParameters({"large": torch.zeros(600 * PIECE_BYTES // 4)})
    assert len(large.sums(0, 10_000)) <= 1 + 256


def test_memory_that_its_owner_has_replaced_is_not_kept_alive() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    plain = PlainParameters({"a": parameter})
    hashes(plain, 0)
    storage = parameter.untyped_storage()
    assert torch._C._storage_Use_Count(storage._cdata) > 1
    parameter.data = torch.ones(5)
    with pytest.raises(ValueError, match="no longer"):
        plain.sums(1, 1)
    assert torch._C._storage_Use_Count(storage._cdata) == 1


def replace_memory(parameter: torch.Tensor) -> None:
    parameter.data = torch.ones(5)


def free_memory(parameter: torch.Tensor) -> None:
    parameter.untyped_storage().resize_(0)


@pytest.mark.parametrize("change", [replace_memory, free_memory])
def test_a_parameter_that_was_replaced_or_freed_ends_the_comparison_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], None]
) -> None:
    model = torch.nn.Linear(2, 2)
    check = check_in_world_of_two(monkeypatch, {"model": model})
    assert record_of(check, 0).plain
    change(model.weight)
    assert not record_of(check, 1).plain
    assert (check.compared, check.check(2)) == ((), None)


def check_in_world_of_two(monkeypatch: pytest.MonkeyPatch, state: Mapping[str, object]) -> ReplicaCheck:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    return ReplicaCheck(state, OnceLog(), budget_ratio=EVERY_STEP)


def record_of(check: ReplicaCheck, step: int) -> StepRecord:
    record, sums = StepRecord(), check.check(step)
    assert sums is not None and sums.put(record)
    return record


def test_only_trained_parameters_are_taken_and_the_coverage_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    check = check_in_world_of_two(monkeypatch, {"model": model})
    assert check.compared is None
    first, second = record_of(check, 0), record_of(check, 1)
    assert [one.part for one in first.plain] == [SAMPLE, "model/weight"]
    assert not first.replicas
    coverage = first.coverage
    assert (coverage.replica_bytes, coverage.plain_bytes, coverage.parameter_bytes) == (0, 16, 24)
    assert second.plain and not second.HasField("coverage")
    assert check.compared is not None
    assert [id(tensor) for tensor in check.compared] == [id(model.weight)]


def test_a_run_of_one_rank_reports_that_it_compares_nothing() -> None:
    check = ReplicaCheck({"model": torch.nn.Linear(2, 2)}, OnceLog(), budget_ratio=EVERY_STEP)
    coverage = record_of(check, 0).coverage
    assert (coverage.replica_bytes, coverage.plain_bytes, coverage.parameter_bytes) == (0, 0, 24)
    assert check.check(1) is None


def test_what_frees_its_plain_tensors_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.fsdp import FSDPModule

    class Sharded(FSDPModule, torch.nn.Linear):
        def __new__(cls, *args: object) -> "Sharded":
            made: Sharded = torch.nn.Module.__new__(cls)
            return made

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    model = torch.nn.Linear(2, 2)
    assert set(held_parameters({"model": model}).plain) == {"model/weight", "model/bias"}
    sharded = Sharded(2, 2)
    assert held_parameters({"model": model}).plain == {}
    del sharded
