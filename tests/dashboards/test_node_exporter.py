"""The panels that join node_exporter, with a real one. The name of its host is in a file, because tests choose it."""

from pathlib import Path
from typing import Any

from dashboards.local_server import listening_server
from dashboards.queries import panel_queries
from tests.support.catalogue_exporter import NODE, RUN, catalogue_exporter
from tests.support.programs import NODE_EXPORTER, needs
from tests.support.prometheus_server import Target, needs_prometheus, prometheus_server

PANELS = {"Processors", "Memory available", "Network"}


@needs_prometheus
@needs(NODE_EXPORTER)
def test_a_node_has_its_load_and_other_hosts_are_left_out(tmp_path: Path, dashboards: dict[str, Any]) -> None:
    def exporter(host: str) -> list[str]:
        (tmp_path / host).mkdir()
        (tmp_path / host / "uname.prom").write_text(f'node_uname_info{{nodename="{host}"}} 1\n')
        collectors = [f"--collector.{name}" for name in ("cpu", "meminfo", "netdev", "textfile")]
        command = [NODE_EXPORTER, "--web.listen-address=127.0.0.1:0", "--collector.disable-defaults"]
        return [*command, *collectors, f"--collector.textfile.directory={tmp_path / host}"]

    queries = panel_queries(dashboards["holdfast-nodes"], run=RUN, rate_interval="10s")
    joined = [(title, expression) for title, expression in queries if title in PANELS]
    assert {title for title, _ in joined} == PANELS
    with (
        catalogue_exporter("agent") as agent,
        listening_server(exporter(NODE), tmp_path / "node.log") as node,
        listening_server(exporter("stranger"), tmp_path / "stranger.log") as stranger,
    ):
        hosts = [Target(url.removeprefix("http://"), component="", run="") for url in (node, stranger)]
        with prometheus_server(tmp_path, [Target(agent, component="agent", run=RUN), *hosts]) as prometheus:
            both = [("both", "count(node_uname_info) == 2")]
            assert prometheus.queries_without_data(both) == []
            assert prometheus.queries_without_data(joined) == []
            for title, expression in joined:
                assert [sample["metric"] for sample in prometheus.query(expression)] == [{"node": NODE}], title
