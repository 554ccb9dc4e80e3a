"""A training loop with a state as large models have it: bf16 weights, fp32 master weights, Adam's moments."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from holdfast_hooks import Stateful
from holdfast_trainer.config_sections import ModelConfig
from holdfast_trainer.data.corpus import Corpus
from holdfast_trainer.model.transformer import Transformer

_SEQUENCE = 128
_PEAK_RATE = 1e-3
_WARM_UP_SHARE = 0.1
_RATE_AFTER_THE_END = 0.01
"""Share of the peak rate. Weights must change with every step that is timed, as they do in a run."""


class MasterWeights:
    """The fp32 weights that the optimizer updates, by the names of the model's parameters."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self) -> dict[str, Tensor]:
        """Return the live tensors."""
        return self.tensors

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Copy the values of ``state_dict`` into the live tensors."""
        for name, tensor in self.tensors.items():
            tensor.copy_(state_dict[name])


class Training:
    """The reference trainer's byte-level transformer, trained for ``steps`` steps. The rate decays to zero."""

    def __init__(self, config: ModelConfig, corpus: Corpus, *, steps: int, batch: int) -> None:
        self.losses: list[float] = []
        self._steps = steps
        self._batch = batch
        self._tokens = corpus.train.map()
        self._random = np.random.default_rng(0)
        self._model = Transformer(
            config, positions=torch.arange(_SEQUENCE), layers=range(config.layers), first=True, last=True
        )
        self._model.initialise(torch.device("cpu"), seed=0)
        parameters = dict(self._model.named_parameters())
        self._master = MasterWeights({name: value.detach().clone() for name, value in parameters.items()})
        self._model.bfloat16()
        self._optimizer = torch.optim.AdamW(self._master.tensors.values(), lr=_PEAK_RATE, weight_decay=0.1, fused=True)

    @property
    def state(self) -> dict[str, Stateful]:
        """The state in the form of ``attach(state=...)``."""
        return {"model": self._model, "master": self._master, "optimizer": self._optimizer}

    def step(self) -> None:
        """Train one step."""
        progress = len(self.losses) / self._steps
        rate = min(progress / _WARM_UP_SHARE, (1 - progress) / (1 - _WARM_UP_SHARE), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = (rate if rate > 0 else _RATE_AFTER_THE_END) * _PEAK_RATE
        starts = self._random.integers(len(self._tokens) - _SEQUENCE - 1, size=self._batch)
        samples = np.stack([self._tokens[start : start + _SEQUENCE + 1] for start in starts]).astype(np.int64)
        tokens = torch.from_numpy(samples)
        logits = self._model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self._update()
        self.losses.append(loss.item())

    def kinds(self) -> dict[str, Tensor]:
        """Return a copy of the state as one tensor for each kind."""
        weights = list(self._model.parameters())
        moments = [self._optimizer.state[master] for master in self._master.tensors.values()]
        return {
            "bf16": _joined(weights),
            "fp32": _joined(self._master.tensors.values()),
            "exp_avg": _joined(moment["exp_avg"] for moment in moments),
            "exp_avg_sq": _joined(moment["exp_avg_sq"] for moment in moments),
        }

    def tensors(self) -> list[Tensor]:
        """Return the live tensors that make up the state."""
        moments: list[dict[str, Any]] = list(self._optimizer.state.values())
        own = [value for moment in moments for value in moment.values() if isinstance(value, Tensor)]
        return [*(weight.detach() for weight in self._model.parameters()), *self._master.tensors.values(), *own]

    @torch.no_grad()
    def _update(self) -> None:
        for name, weight in self._model.named_parameters():
            assert weight.grad is not None
            self._master.tensors[name].grad = weight.grad.float()
            weight.grad = None
        self._optimizer.step()
        for name, weight in self._model.named_parameters():
            weight.copy_(self._master.tensors[name])


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
