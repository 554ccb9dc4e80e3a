"""What an exception says, as text for people."""


def reason_of(error: BaseException) -> str:
    """Return the reason in one line. Some exceptions say nothing, such as TimeoutError: their kind is the reason."""
    return " ".join(str(error).split()) or type(error).__name__
