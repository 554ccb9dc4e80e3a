"""Hides what earlier tests have left behind from the search for wrappers of modules."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_wrappers_of_earlier_tests() -> Iterator[None]:
    """Freeze all objects that exist: the search goes through what the garbage collector tracks, and not through these.

    A sharded model of another test may live on in this process, in a cycle or in a cache of torch. No model is compared
    beside one.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
