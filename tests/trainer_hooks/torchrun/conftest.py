"""Fixtures of the rendezvous of torchrun: a real Redis."""

from tests.support.store_server import store_process, store_server

__all__ = ["store_process", "store_server"]
