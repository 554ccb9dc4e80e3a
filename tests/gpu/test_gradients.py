"""Gradients on the GPU that are not finite are traced to their module and their parameter."""

import math
from typing import Any

import pytest
import torch

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.telemetry.gradient_origin import GradientWatch
from holdfast_hooks.telemetry.own_gradients import OwnGradientWatch
from holdfast_proto.v1.session_pb2 import StepRecord
from tests.trainer_hooks.telemetry.test_bad_gradients import Model

pytestmark = pytest.mark.gpu


def test_the_module_that_makes_a_bad_gradient_is_named(gpu: torch.device) -> None:
    layers = torch.nn.ModuleDict({f"layer{index}": torch.nn.Linear(8, 8) for index in range(4)}).to(gpu)
    watch = GradientWatch(OnceLog())
    watch.watch(dict(layers.items()), then="loss")
    with torch.no_grad():
        weight: Any = layers["layer2"].weight
        weight[0, 0] = math.inf
    x: Any = torch.ones(2, 8, device=gpu, requires_grad=True)
    for layer in layers.values():
        x = layer(x)
    x.nan_to_num(0.0, 0.0, 0.0).sum().backward()
    sums = watch.take()
    watch.close()
    assert sums is not None
    torch.cuda.synchronize()
    record = StepRecord()
    assert sums.put(record)
    assert record.nonfinite_origin.module == "layer2"


def test_the_parameter_with_a_bad_gradient_is_named(gpu: torch.device) -> None:
    model = Model().to(gpu)
    model.second.is_bad = True
    watch = OwnGradientWatch({"model": model}, OnceLog())
    watch.start()
    assert watch.begin_step()
    model(torch.ones(2, 4, device=gpu)).sum().backward()
    own = watch.take()
    watch.stop()
    assert own is not None
    torch.cuda.synchronize()
    record = StepRecord()
    assert own.put(record)
    assert (record.bad_gradient.parameter, record.bad_gradient.own) == ("model.second.weight", True)
