"""Every story in scenarios/ goes as it is written."""

from pathlib import Path

import pytest

from tests.simulation.runner import rewritten

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_goes_as_it_is_written(scenario: Path, request: pytest.FixtureRequest) -> None:
    told = rewritten(scenario)
    if request.config.getoption("--rewrite", default=False):
        scenario.write_text(told)
    assert told == scenario.read_text()
    assert "DetectorFailed" not in told
