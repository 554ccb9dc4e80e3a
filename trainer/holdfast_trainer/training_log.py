"""The trainer's own lines on stdout, and the speed that they show."""

import time

import torch
from torch import Tensor

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.flops import flops_per_token, mfu, peak_flops_per_s
from holdfast_trainer.rank_device import RankDevice


class TrainingLog:
    """Prints a line every ``train.log_every`` steps and measures the speed between two lines."""

    def __init__(self, config: TrainerConfig, device: RankDevice) -> None:
        self.tokens = config.train.global_batch * config.data.sequence
        """Tokens in a step, over all ranks."""
        self._every = config.train.log_every
        self._flops_per_token = flops_per_token(config.model, sequence=config.data.sequence)
        self._peak_flops_per_s = _peak_flops_per_s(config, device)
        self._steps = 0
        self._since_s = time.monotonic()

    def is_logged(self, step: int) -> bool:
        """Return whether a line follows ``step``."""
        return (step + 1) % self._every == 0

    def step_done(self, step: int, loss: Tensor | None, grad_norm: Tensor) -> float | None:
        """Count the step and print its line if one is due; then return MFU (0 to 1), if the device's peak is known."""
        self._steps += 1
        if not self.is_logged(step):
            return None
        assert loss is not None
        # Waits for the device, so that the time of its work counts.
        loss_value, norm_value = loss.item(), grad_norm.item()
        now_s = time.monotonic()
        speed = self._steps * self.tokens / (now_s - self._since_s)
        self._steps, self._since_s = 0, now_s
        print(f"step {step}  loss {loss_value:.4f}  grad norm {norm_value:.3f}  {speed:,.0f} tokens/s", flush=True)
        if self._peak_flops_per_s is None:
            return None
        return mfu(speed, flops_per_token=self._flops_per_token, peak_flops_per_s=self._peak_flops_per_s)

    def validated(self, step: int, loss: Tensor | None) -> None:
        """Print the validation loss."""
        print(f"step {step}  validation loss {loss:.4f}", flush=True)


def _peak_flops_per_s(config: TrainerConfig, device: RankDevice) -> float | None:
    """Return the peak of the devices of all ranks together; None if it is not known."""
    if device.kind != "cuda":
        return None
    of_one = peak_flops_per_s(torch.cuda.get_device_name(device.torch_device), config.precision)
    return None if of_one is None else of_one * config.parallel.ranks
