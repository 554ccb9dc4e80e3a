"""What an exception says, in one line."""

import pytest

from holdfast_base.text import reason_of


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
