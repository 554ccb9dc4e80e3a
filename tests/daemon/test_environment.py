"""A daemon has the environment of the job that it watches."""

import urllib.request
from pathlib import Path

from tests.support.daemons import daemon_process
from tests.support.store_server import StoreServer


def test_the_folder_of_the_jobs_own_metrics_is_not_the_daemons(store_server: StoreServer, folder: Path) -> None:
    wrapper = ("env", "PROMETHEUS_MULTIPROC_DIR=/nowhere")
    with (
        daemon_process(folder, store_server, wrapper=wrapper) as it,
        urllib.request.urlopen(f"http://127.0.0.1:{it.metrics_port}/metrics") as answer,
    ):
        assert b"holdfast_coordinator_tick_duration_seconds" in answer.read()
