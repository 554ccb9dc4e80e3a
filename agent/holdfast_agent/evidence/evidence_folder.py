"""The folder that an incident's evidence is gathered into."""

from pathlib import Path

MISSING = "missing.txt"


class EvidenceFolder:
    """Whatever cannot be had leaves a line in ``missing.txt`` that says why.

    Nodes may share the folder: file names carry the rank or the node, and lines are appended.
    """

    def __init__(self, path: Path, node: str) -> None:
        """Create the folder. Raises OSError if that cannot be done."""
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.node = node

    def write(self, name: str, text: str) -> None:
        """Write one file; if the disk refuses it, say so beside it."""
        try:
            (self.path / name).write_text(text)
        except OSError as error:
            self.miss(name, str(error))

    def miss(self, name: str, why: str) -> None:
        """Note why a file is not there, or not whole. Raises OSError if not even that can be written."""
        with (self.path / MISSING).open("a") as file:
            file.write(f"{self.node}: {name}: {' '.join(why.split())}\n")

    def files(self) -> list[str]:
        """Return the files in it and in its folders, relative and sorted."""
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file())
