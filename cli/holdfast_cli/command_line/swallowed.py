"""A hint about options of ours that stand after the first word of a command: that command gets them."""

from collections.abc import Collection, Sequence

END_OF_OPTIONS = "--"


def swallowed_line(command_path: str, given: Sequence[str], passed_on: Sequence[str], ours: Collection[str]) -> str:
    """Return one line if words that are passed on have the names of our options; "" if all is clear.

    With ``--`` the user has said what belongs to the command. Without it, the command may still have options of the
    same names. So nothing is refused.

    Args:
        command_path: our own command, such as ``holdfast run``.
        given: all words after it.
        passed_on: the words of the command to run.
        ours: the names of our options.
    """
    if END_OF_OPTIONS in given:
        return ""
    names = [word for word in passed_on if word.partition("=")[0] in ours]
    if not names:
        return ""
    return (
        f"{', '.join(names)} after {passed_on[0]} is passed to it: put options of `{command_path}` before it, or write "
        f"`{END_OF_OPTIONS} {passed_on[0]}` if it has such an option itself"
    )
