"""The folder that holds the evidence of an incident."""

from pathlib import Path

from holdfast_base.text import reason_of

MISSING = "missing.txt"


class EvidenceFolder:
    """Takes the files of evidence. For each file that is missing, a line in ``missing.txt`` says why.

    Nodes may share the folder, so file names contain the rank or the node, and lines are appended.
    """

    def __init__(self, path: Path, node: str) -> None:
        """Create the folder. Raises OSError if that fails."""
        # Stacks and last words may hold secrets of the script.
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self.node = node

    def write(self, name: str, text: str) -> None:
        """Write one file; if that fails, note why."""
        try:
            (self.path / name).write_text(text)
        except OSError as error:
            self.miss(name, error)

    def miss(self, name: str, why: "str | Exception") -> None:
        """Note why a file is missing or incomplete. Raises OSError if that line cannot be written either."""
        reason = " ".join(why.split()) if isinstance(why, str) else reason_of(why)
        with (self.path / MISSING).open("a") as file:
            file.write(f"{self.node}: {name}: {reason}\n")

    def files(self) -> list[str]:
        """Return the paths of all files below the folder, relative to it and sorted."""
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file())
