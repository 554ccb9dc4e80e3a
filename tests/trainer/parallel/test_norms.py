import pytest
import torch
from torch.distributed.tensor import DTensor

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.optimizer import make_optimizer
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.norms import step_and_measure
from holdfast_trainer.parallel.parallelize import parallelize
from tests.trainer.world_of_one import CPU, small_config, world_of_one


def steps(config: TrainerConfig, *, measured: bool) -> tuple[list[bytes], list[float]]:
    """Return the bits of the weights after three steps, and the norms of the updates, if measured."""
    mesh = Mesh.create(config.parallel, "cpu")
    parts = parallelize(config, mesh, CPU)
    optimizer = make_optimizer(parts.parameters(), config.optimizer)
    norms = []
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        for parameter in parts.parameters():
            parameter.grad = torch.zeros_like(parameter)
            assert isinstance(parameter.grad, DTensor)
            parameter.grad.to_local().normal_(generator=generator)
        if measured:
            norms.append(step_and_measure(optimizer, mesh).item())
        else:
            optimizer.step()
    weights = [parameter.to_local() for parameter in parts.parameters() if isinstance(parameter, DTensor)]
    return [weight.detach().numpy().tobytes() for weight in weights], norms


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_measured_step_has_the_bits_of_a_plain_one(name: str) -> None:
    config = small_config(optimizer={"name": name, "learning_rate": 0.1})
    with world_of_one():
        plain, _ = steps(config, measured=False)
        measured, norms = steps(config, measured=True)
    assert plain == measured
    assert all(norm > 0 for norm in norms)
