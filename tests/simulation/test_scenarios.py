"""Every scenario in scenarios/ leads to the log that it contains."""

from pathlib import Path

import pytest

from tests.simulation.runner import rewritten

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_goes_as_it_is_written(scenario: Path, request: pytest.FixtureRequest) -> None:
    written = rewritten(scenario)
    if request.config.getoption("--rewrite", default=False):
        scenario.write_text(written)
    assert written == scenario.read_text()
    assert "DetectorFailed" not in written
