"""What an exception says, in one line."""

import pytest

from holdfast_base.text import HIDDEN, arguments_without_secrets, reason_of


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("it is\n  no dump"), "it is no dump"),
        (TimeoutError(), "TimeoutError"),
        (ProcessLookupError(), "ProcessLookupError"),
        (ConnectionResetError(" "), "ConnectionResetError"),
    ],
)
def test_the_reason_is_never_empty(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_the_arguments_of_a_command_are_shown_without_secrets() -> None:
    words = ["train.py", "--wandb-api-key", "0123", "--lr", "3e-4", "--hf_token=abc", "--quiet", "redis://u:pw@host/0"]
    assert arguments_without_secrets(words) == [
        "train.py", "--wandb-api-key", HIDDEN, "--lr", "3e-4", f"--hf_token={HIDDEN}", "--quiet", f"redis://{HIDDEN}@host/0",
    ]  # fmt: skip
    assert arguments_without_secrets(["a", "--password", "--seed", "7"]) == ["a", "--password", "--seed", "7"]
