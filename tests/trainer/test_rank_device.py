from collections.abc import Iterator

import pytest
import torch

from holdfast_hooks import ConfigurationError
from holdfast_trainer.rank_device import open_device


def test_machine_without_enough_cuda_devices_is_refused() -> None:
    local_rank = torch.cuda.device_count()
    message = r"^distributed\.device is cuda, but this machine has \d+ CUDA devices"
    with pytest.raises(ConfigurationError, match=message):
        open_device("cuda", {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(local_rank + 1)})


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A machine with two GPUs; the list of those that were chosen."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield chosen
    torch.use_deterministic_algorithms(False)


def test_ranks_share_gpus_with_gloo_only(two_gpus: list[int]) -> None:
    ranks = [{"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"} for rank in range(3)]
    devices = [open_device("cuda", rank, backend="gloo") for rank in ranks]
    assert two_gpus == [0, 1, 0]
    assert [str(device.torch_device) for device in devices] == ["cuda:0", "cuda:1", "cuda:0"]
    assert {device.backend for device in devices} == {"gloo"}
    assert open_device("cuda", ranks[1]).backend == "cpu:gloo,cuda:nccl"
    with pytest.raises(ConfigurationError, match=r'2 CUDA devices for 3 ranks: .* distributed\.backend = "gloo"'):
        open_device("cuda", ranks[2])


def test_ranks_that_share_a_machine_use_one_thread_each() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert open_device("cpu", {"LOCAL_WORLD_SIZE": "1"}).backend == "gloo"
        assert torch.get_num_threads() == 2
        open_device("cpu", {"LOCAL_WORLD_SIZE": "2"})
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
