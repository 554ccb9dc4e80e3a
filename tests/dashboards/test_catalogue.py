import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dashboards.catalogue import CATALOGUE, Component, differences
from tests.support.catalogue_exporter import CatalogueCollector

REPOSITORY = Path(__file__).resolve().parents[2]
COMPONENTS: tuple[Component, ...] = ("agent", "daemon", "guard")


def _metrics_text(component: Component) -> str:
    registry = CollectorRegistry()
    registry.register(CatalogueCollector(component))
    return generate_latest(registry).decode()


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_exporter_of_the_whole_catalogue_differs_in_nothing(component: Component) -> None:
    assert differences(component, _metrics_text(component)) == []


def test_missing_and_unknown_metrics_are_named() -> None:
    text = re.sub(r"holdfast_rank_step\b", "holdfast_rank_stop", _metrics_text("agent"))
    assert differences("agent", text) == ["holdfast_rank_step: missing", "holdfast_rank_stop: not in the catalogue"]


@pytest.mark.parametrize(
    ("right", "wrong", "difference"),
    [
        ("rank_up gauge", "rank_up untyped", "holdfast_rank_up: type is unknown, should be gauge"),
        ("store_up{run=", "store_up{job=", "holdfast_store_up: labels are ['job'], should be ['run']"),
        ('"raw"', '"plain"', "holdfast_checkpoint_bytes: form is ['plain'], should be one of ['raw', 'stored']"),
        ("HELP holdfast_store_up ", "HELP holdfast_store_up Not ", "holdfast_store_up: help is "),
        (
            'step_duration_seconds_bucket{le="0.05"',
            'step_duration_seconds_bucket{le="0.06"',
            "holdfast_step_duration_seconds: buckets are ",
        ),
    ],
    ids=["type", "label", "value outside a fixed set", "help text", "bucket"],
)
def test_what_is_not_as_in_the_catalogue_is_named(right: str, wrong: str, difference: str) -> None:
    [found] = differences("agent", _metrics_text("agent").replace(right, wrong))
    assert found.startswith(difference)


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


@pytest.mark.parametrize("generator", ["metrics_page.py", "grafana/generate.py"])
def test_committed_files_are_what_their_generator_writes(generator: str) -> None:
    command = [sys.executable, f"dashboards/{generator}", "--check"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
