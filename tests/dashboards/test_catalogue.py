import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dashboards.catalogue import CATALOGUE, Component, differences
from tests.support.catalogue_exporter import CatalogueCollector

REPOSITORY = Path(__file__).resolve().parents[2]
COMPONENTS: tuple[Component, ...] = ("agent", "daemon", "guard")


@pytest.fixture
def agent_text() -> str:
    return _metrics_text("agent")


def _metrics_text(component: Component) -> str:
    registry = CollectorRegistry()
    registry.register(CatalogueCollector(component))
    return generate_latest(registry).decode()


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_exporter_of_the_whole_catalogue_differs_in_nothing(component: Component) -> None:
    assert differences(component, _metrics_text(component)) == []


def test_missing_and_unknown_metrics_are_named(agent_text: str) -> None:
    text = agent_text.replace("holdfast_rank_step{", "holdfast_rank_stop{")
    text = text.replace("HELP holdfast_rank_step ", "HELP holdfast_rank_stop ")
    text = text.replace("TYPE holdfast_rank_step ", "TYPE holdfast_rank_stop ")
    assert differences("agent", text) == [
        "holdfast_rank_step: missing",
        "holdfast_rank_stop: not in the catalogue",
    ]


def test_a_wrong_type_is_named(agent_text: str) -> None:
    text = agent_text.replace("TYPE holdfast_rank_up gauge", "TYPE holdfast_rank_up untyped")
    assert differences("agent", text) == ["holdfast_rank_up: type is unknown, should be gauge"]


def test_a_wrong_label_is_named(agent_text: str) -> None:
    text = agent_text.replace("holdfast_store_up{run=", "holdfast_store_up{job=")
    assert differences("agent", text) == ["holdfast_store_up: labels are ['job'], should be ['run']"]


def test_a_value_outside_a_fixed_set_is_named(agent_text: str) -> None:
    text = agent_text.replace('form="raw"', 'form="plain"')
    assert differences("agent", text) == [
        "holdfast_checkpoint_bytes: form is ['plain'], should be one of ['raw', 'stored']"
    ]


def test_a_help_text_that_is_not_the_catalogues_is_named(agent_text: str) -> None:
    text = agent_text.replace("HELP holdfast_store_up ", "HELP holdfast_store_up Not ")
    assert [line.partition(" is ")[0] for line in differences("agent", text)] == ["holdfast_store_up: help"]


def test_a_wrong_bucket_is_named(agent_text: str) -> None:
    text = agent_text.replace('step_duration_seconds_bucket{le="0.05"', 'step_duration_seconds_bucket{le="0.06"')
    assert [line.partition(" are ")[0] for line in differences("agent", text)] == [
        "holdfast_step_duration_seconds: buckets"
    ]


def test_names_follow_the_conventions() -> None:
    for component in COMPONENTS:
        names = [family.name for family in CATALOGUE[component]]
        assert len(names) == len(set(names))
        for family in CATALOGUE[component]:
            assert family.name.endswith("_total") == (family.kind == "counter"), family.name
            assert not set(family.labels) & {"job", "type", "cluster", "env", "step", "pid", "generation"}, family.name
            assert family.kind != "histogram" or "rank" not in family.labels, family.name
            assert set(family.values) <= set(family.labels), family.name
            assert bool(family.buckets) == (family.kind == "histogram"), family.name
            assert list(family.buckets) == sorted(family.buckets), family.name


def test_every_failure_counter_has_its_attempts() -> None:
    for component in COMPONENTS:
        names = {family.name for family in CATALOGUE[component]}
        for failures in (name for name in names if name.endswith("_failures_total")):
            stem = failures.removesuffix("_failures_total")
            assert names & {f"{stem}_attempts_total", f"{stem}_operations_total"}, failures


def test_committed_metrics_page_is_what_the_generator_writes() -> None:
    result = subprocess.run(
        [sys.executable, "dashboards/metrics_page.py", "--check"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
