"""The option ``--rewrite``, which writes the logs of scenarios anew."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the logs of tests/simulation/scenarios anew")
