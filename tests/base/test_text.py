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


@pytest.mark.parametrize(
    "name", ["--model.experts_per_token", "--max-tokens", "--tokens_per_batch", "--data.tokenizer", "--author"]
)
def test_a_number_of_tokens_a_tokenizer_and_an_author_are_no_secrets(name: str) -> None:
    assert arguments_without_secrets([name, "8", f"{name}=8"]) == [name, "8", f"{name}=8"]


@pytest.mark.parametrize(
    "name", ["--token", "--hf-token", "--TOKEN", "--token_file", "--auth", "--authorization", "--x.api_key"]
)
def test_names_that_speak_of_a_secret(name: str) -> None:
    assert arguments_without_secrets([name, "8", f"{name}=8"]) == [name, HIDDEN, f"{name}={HIDDEN}"]
