"""Read and replace the small files that the runtime keeps for one uid.

Who may have touched a file is judged by its reader, twice: before it is opened, so that nothing
but a regular file ever is, and on the descriptor, so that the file judged is the file read.
"""

import os
from collections.abc import Callable
from contextlib import suppress

PRIVATE = 0o600
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read(
    path: str,
    check: Callable[[os.stat_result], None],
    most: int,
    *,
    dir_fd: int | None = None,
    offset: int = 0,
) -> tuple[bytes, int]:
    """Return at most `most` bytes from `offset`, and the file's size; raises `OSError`.

    `check` is shown what has the name, even a link, and raises for what it would not believe.
    """
    check(os.stat(path, dir_fd=dir_fd, follow_symlinks=False))
    descriptor = os.open(path, _READ, dir_fd=dir_fd)
    try:
        found = os.fstat(descriptor)
        check(found)
        return os.pread(descriptor, most, offset), found.st_size
    finally:
        os.close(descriptor)


def create(path: str, *, dir_fd: int | None = None) -> int:
    """Return the descriptor of a new file, mode 0600; raises `OSError` where the name is taken."""
    return os.open(path, _NEW, PRIVATE, dir_fd=dir_fd)


def replace(
    new: str, path: str, data: bytes, *, dir_fd: int | None = None, sync: bool = False
) -> None:
    """Write the file `new` and give it the name `path`; the directory is not synced.

    Raises `OSError`: then what had the name has it still, and `new` is gone if it was made here.
    """
    descriptor = create(new, dir_fd=dir_fd)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(new, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=dir_fd)
        raise
