"""Files that others rely on or may have damaged: replaced atomically, private, regular, or secret.

Nothing is flushed to the disk, so that after a power cut a file may be empty. What must survive one is written by
``holdfast_checkpoint.format.durable``.
"""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL_SUFFIX = ".partial"
"""End of the name of a file that is still being written."""
SHARED_FOLDER = 0o2750
"""Mode of a folder of a run that its group may read. The bit setgid gives all that is made in it to that group."""
_SHARED_FILE = 0o640
_ANYBODY = 0o666


def replace_file(path: Path, data: bytes, *, mode: int = _ANYBODY) -> None:
    """Create or replace the file at ``path``. Its permissions are those of ``mode`` that the umask allows.

    Without a ``mode``, the group of a shared folder may read it.

    Raises OSError; the old file then stays as it was.
    """
    with replacement(path) as partial:
        # O_EXCL: another user may have put a link in this place since the last line, and it must not be followed.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode == _ANYBODY:
                share_file(path, descriptor)
            file.write(data)


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield a path next to ``path`` for the new file, which becomes ``path`` at the end of the block.

    If the block raises, the new file is removed and the old one stays. Raises OSError, also if a device, a pipe or a
    folder has this name: a file must not take its place.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    # A writer that died may have left one, and another user may have put one there: neither is written into.
    partial.unlink(missing_ok=True)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


class UnfitFileError(OSError):
    """What is there is no regular file, or is too large. ``strerror`` completes "FILE: ..."."""


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file of up to ``most_bytes``. Raises OSError, UnfitFileError among them."""
    # Without O_NONBLOCK, a pipe would wait for its writer, forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnfitFileError(0, "it is no regular file", str(path))
        if status.st_size > most_bytes:
            raise UnfitFileError(0, f"it has more than {most_bytes} bytes", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(descriptor)


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


def make_run_directory(directory: Path, *, share: bool = False, exist_ok: bool = True) -> None:
    """Create a folder of a run for this user alone, whatever the umask. Leave an existing one alone.

    Missing parents are made by :func:`make_directory`. Raises OSError as that does.

    Args:
        directory: of the run, or within that of the run.
        share: let the group read it, and what is made in it. So it is in any case within a shared folder.
        exist_ok: whether it may exist.
    """
    make_directory(directory.parent)
    _make_folder(directory, share=share, exist_ok=exist_ok)


def make_folder_of_run(directory: Path) -> None:
    """Create a folder in that of a run, and its missing parents, for those who may read the folder that it is in.

    Raises OSError. Other threads may make files at the same time.
    """
    if not directory.parent.is_dir():
        make_folder_of_run(directory.parent)
    _make_folder(directory)


def _make_folder(directory: Path, *, share: bool = False, exist_ok: bool = True) -> None:
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if not exist_ok or not directory.is_dir():
            raise
    else:
        if share or is_shared(directory.parent):
            directory.chmod(SHARED_FOLDER)


def is_shared(folder: Path) -> bool:
    """Return whether a folder of a run was made for its group, too. Raises OSError."""
    return stat.S_IMODE(folder.stat().st_mode) == SHARED_FOLDER


def share_file(path: Path, descriptor: int | None = None) -> None:
    """Let the group read a file if its folder is shared. It must hold no secret. Raises OSError.

    ``descriptor``: of the file, if it is open, or has another name yet.
    """
    if not is_shared(path.parent):
        return
    if descriptor is None:
        path.chmod(_SHARED_FILE)
    else:
        os.fchmod(descriptor, _SHARED_FILE)


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


MOST_BYTES = 16 * 1024


class SecretError(Exception):
    """A file holds no usable secret; the message is one line that names the file, and nothing of what is in it."""


def read_secret(path: Path) -> str:
    """Return the one line of a file, without white space around it. Raises SecretError."""
    try:
        data = read_regular(path, MOST_BYTES)
    except UnfitFileError as error:
        raise SecretError(f"{path}: {error.strerror}: name a file that holds a secret as its only line") from None
    except OSError as error:
        raise SecretError(f"{path}: {error.strerror}") from None
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        raise SecretError(f"{path}: it holds no secret: write it as the only line")
    return text


def exposure(path: Path) -> str:
    """Return the warning about a secret that other users can read, or "" if they cannot."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""  # the caller that reads it says so
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return ""
    return f"{path}: other users can read this secret (mode {stat.S_IMODE(mode):04o}): `chmod 600` makes it private"


class ProcFile:
    """Reads a small file of this process in /proc. The file stays open: to open it costs more than to read it.

    The kernel writes the content anew at each read from the start.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def read(self) -> str:
        """Return the content now, up to 1,024 bytes. Raises OSError."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptor, 1024, 0).decode(errors="replace")

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
