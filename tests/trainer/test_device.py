import pytest
import torch

from holdfast_hooks import ConfigurationError
from holdfast_trainer.device import open_device


def test_machine_without_enough_cuda_devices_is_refused() -> None:
    local_rank = torch.cuda.device_count()
    with pytest.raises(
        ConfigurationError, match=r"^distributed\.device is cuda, but this machine has \d+ CUDA devices"
    ):
        open_device("cuda", {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(local_rank + 1)})


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
