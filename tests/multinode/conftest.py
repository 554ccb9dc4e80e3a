from tests.proto.coroutines import pytest_pyfunc_call
from tests.proto.store_server import store_process, store_server

__all__ = ["pytest_pyfunc_call", "store_process", "store_server"]
