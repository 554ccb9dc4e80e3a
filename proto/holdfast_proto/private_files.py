"""Creates folders in which nobody else can write, and checks who can have written a file.

Holdfast kills processes that such files name, so another user must not be able to write them.
"""

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def make_directory(directory: Path, *, exist_ok: bool = True) -> None:
    """Create ``directory`` and its missing parents, so that nobody else can write in them. Leave existing ones alone.

    Raises OSError; FileExistsError if ``directory`` exists and ``exist_ok`` is False. Of several processes that create
    it so, one succeeds.

    The umask decides who may read them: with 022 they have mode 0755. If it would let every user write, they have mode
    0700, because what is made in them later is open to everybody then. Only call this before other threads make files:
    the umask is that of the whole process.
    """
    umask = os.umask(0o077)
    try:
        if umask & 0o002:
            os.umask(umask | 0o022)
        directory.mkdir(parents=True, exist_ok=exist_ok)
    finally:
        os.umask(umask)


def make_private_directory(directory: Path, setting: str) -> None:
    """Create ``directory`` with mode 0700, or check that the existing one belongs to this user alone.

    Raises OSError, in one line that names ``setting``, for a link and for a folder that others own or can enter: if its
    name can be guessed, another user may have created it first.
    """
    make_directory(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    if stat.S_ISLNK(status.st_mode):
        problem = "is a symbolic link"
    elif not stat.S_ISDIR(status.st_mode):
        problem = "is not a folder"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to another user (uid {status.st_uid})"
    elif status.st_mode & 0o077:
        problem = f"is open to others (mode {stat.S_IMODE(status.st_mode):04o}; `chmod 700` makes it private)"
    else:
        return
    raise PermissionError(f"{directory} {problem}: name another folder, or one that does not exist, with {setting}")


def distrust(path: Path) -> str:
    """Return why another user may have written the file at ``path``, or "" if only this user can have.

    Raises OSError if the file cannot be examined.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_mode & 0o022:
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_uid != os.geteuid() and status.st_uid != _owner_of_new_files(path.parent):
        return f"belongs to another user (uid {status.st_uid})"
    return ""


def _owner_of_new_files(directory: Path) -> int:
    """Return the owner of files that this process creates in ``directory``.

    It need not be this user: network file systems may map root to nobody.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.fstat(file.fileno()).st_uid
