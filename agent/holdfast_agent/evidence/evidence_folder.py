"""The folder that holds the evidence of an incident."""

import os
from collections.abc import Iterable
from pathlib import Path

from holdfast_base.files import make_folder_of_run, share_file
from holdfast_base.text import reason_of
from holdfast_proto.run_files import MISSING, SUSPICION_WITHIN, node_evidence, rank_evidence


class EvidenceFolder:
    """Takes the files of evidence. For each file that is missing, a line in ``missing.txt`` says why.

    Nodes may share the folder, so file names contain the rank or the node, and lines are appended.
    """

    def __init__(self, path: Path, node: str) -> None:
        """Create the folder. Raises OSError if that fails."""
        # Stacks and last words may hold secrets of the script.
        make_folder_of_run(path)
        self.path = path
        self.node = node

    def write(self, name: str, text: str) -> None:
        """Write one file; if that fails, note why."""
        try:
            (self.path / name).write_text(text)
            share_file(self.path / name)
        except OSError as error:
            self.miss(name, error)

    def miss(self, name: str, why: "str | Exception") -> None:
        """Note why a file is missing or incomplete. Raises OSError if that line cannot be written either."""
        reason = " ".join(why.split()) if isinstance(why, str) else reason_of(why)
        with (self.path / MISSING).open("a") as file:
            file.write(f"{self.node}: {name}: {reason}\n")
        share_file(self.path / MISSING)

    def files(self, ranks: Iterable[int]) -> list[str]:
        """Return the files of this node and of ``ranks``, relative to the folder and sorted; links are left out.

        Hundreds of nodes may share the folder, so files of other nodes are not even looked at.
        """
        own = (MISSING, node_evidence(self.node, ""), *(rank_evidence(rank, "") for rank in ranks))
        found = []
        for prefix, directory in (("", self.path), (f"{SUSPICION_WITHIN}/", self.path / SUSPICION_WITHIN)):
            try:
                with os.scandir(directory) as entries:
                    names = [one.name for one in entries if one.is_file(follow_symlinks=False)]
            except FileNotFoundError:
                continue
            found += [prefix + name for name in names if name.startswith(own)]
        return sorted(found)
