"""Fixtures for the tests of the daemon."""

from tests.support.coroutines import pytest_pyfunc_call
from tests.support.short_folder import folder
from tests.support.store_server import store_process, store_server

__all__ = ["folder", "pytest_pyfunc_call", "store_process", "store_server"]
