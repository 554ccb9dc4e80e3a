import subprocess

import pytest

from holdfast_proto.rank_context import VARIABLE, ObservedNode, RankContext

CONTEXT = RankContext(
    run="run",
    generation=3,
    agent="unix:/run/agent.sock",
    black_box="/var/rank-00001.box",
    snapshot_every=5,
    checkpoint_every=50,
    restore_slot="/dev/shm/größe 1.slot",
)


def test_a_context_comes_back_from_its_one_variable_as_it_was() -> None:
    assert RankContext.from_environment(CONTEXT.to_environment()) == CONTEXT
    assert list(CONTEXT.to_environment()) == [VARIABLE]


def test_a_process_that_no_agent_started_has_none() -> None:
    assert RankContext.from_environment({"RANK": "0"}) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[1, 2]",
        '"text"',
        '{"run": "run"}',
        '{"run": "r", "generation": 1, "agent": "a", "black_box": "b", "colour": "blue"}',
    ],
    ids=["empty", "cut", "null", "list", "string", "fields missing", "field unknown"],
)
def test_a_broken_variable_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE) as caught:
        RankContext.from_environment({VARIABLE: text})
    assert "\n" not in str(caught.value)


NODE = ObservedNode(run="run", agent="unix:/run/agent.sock", black_boxes="/var/black boxes")


@pytest.mark.parametrize(("restarts", "generation"), [({}, 1), ({"TORCHELASTIC_RESTART_COUNT": "2"}, 3)])
def test_every_rank_of_another_launcher_finds_its_own_context_in_the_nodes_variable(
    restarts: dict[str, str], generation: int
) -> None:
    context = RankContext.from_environment({**NODE.to_environment(), **restarts}, rank=7)
    assert context == RankContext(
        run="run",
        generation=generation,
        agent="unix:/run/agent.sock",
        black_box=f"/var/black boxes/generation-000{generation}/rank-00007.box",
        observed=True,
    )


def test_the_shell_line_sets_the_nodes_variable() -> None:
    printed = subprocess.run(
        ["sh", "-c", f'{NODE.shell_line()}; printf %s "${VARIABLE}"'], check=True, capture_output=True, text=True
    ).stdout
    assert {VARIABLE: printed} == NODE.to_environment()
