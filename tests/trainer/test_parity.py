"""The references of the parity tests themselves."""

import math

import pytest
import torch

from tests.trainer.parity import exact_norm


def test_the_norm_of_as_many_equal_changes_as_the_largest_model_has_is_exact() -> None:
    count, change = 265_248, 1e-3
    found = exact_norm(torch.full((count,), change))
    assert found.item() == pytest.approx(math.sqrt(count) * change, rel=2e-7)
