"""The workflows run what developers run, with only the rights that they need."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> Any:
    return yaml.safe_load(request.param.read_text())


def steps_of(workflow: Any) -> list[Any]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_a_workflow_may_only_read(workflow: Any) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in workflow["jobs"].values())
    assert "secrets." not in str(workflow)


def test_actions_are_pinned_to_a_commit(workflow: Any) -> None:
    used = [step["uses"] for step in steps_of(workflow) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)


def test_the_targets_are_those_of_the_local_check() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    matrix = workflow["jobs"]["make"]["strategy"]["matrix"]
    local = re.findall(r"^make ([\w-]+)\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    always, now_and_then = re.findall(r"'(\[\"gate\".*?\])'", matrix["target"])[::-1]
    assert json.loads(always) == local
    assert json.loads(now_and_then) == [*local, "test-system", "test-frameworks"]
    assert matrix["python"] == ["3.11", "3.13"]
    assert "make ${{ matrix.target }}" in [step.get("run") for step in steps_of(workflow)]
