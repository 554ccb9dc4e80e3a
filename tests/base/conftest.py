"""Fixtures for the tests of files, processes and servers."""

from tests.support.coroutines import pytest_pyfunc_call
from tests.support.store_server import store_process, store_server

__all__ = ["pytest_pyfunc_call", "store_process", "store_server"]
