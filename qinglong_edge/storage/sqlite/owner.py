"""Hold the owner lock: one process owns the database at a time (architecture 3.2).

The lock is a flock on `STATE/lock`: the kernel gives it up when its holder dies, however it dies.
An owner that does not listen writes nothing into the file.
"""

import errno
import fcntl
import os
import stat
import time
from types import TracebackType
from typing import Self

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import RefusedError, UnavailableError
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.storage.filesystem import unavailable

LOCK = "lock"

_POLL_MS = 20
_PRIVATE = 0o600
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN = (
    os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
)  # the last one: a planted pipe must not hang us
_READ_ONLY_ERRORS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class OwnerLock:
    """Be the owner until `release`, the end of the `with` block or the end of the process.

    A child made by fork shares the lock and would hold it on: it closes `descriptor` first.
    """

    def __init__(self, descriptor: int) -> None:
        """Take over a locked descriptor."""
        self.descriptor = descriptor

    @classmethod
    def acquire(
        cls, state_dir: str, *, wait_ms: int = limits.OWNER_WAIT_MS, clocks: Clocks
    ) -> Self:
        """Take the lock, trying for `wait_ms` of monotonic time, at least once.

        Creates the lock file (0600) where it is missing and writes nothing else. Raises
        `UnavailableError` `state_busy` while another process owns the state, others where the
        storage fails; `RefusedError` `not_initialised`, or `state_insecure` for a planted file.
        """
        deadline_ms = clocks.monotonic_ms() + wait_ms
        directory = _directory(state_dir)
        try:
            while True:
                descriptor = _locked(directory)
                if descriptor is not None:
                    return cls(descriptor)
                left_ms = deadline_ms - clocks.monotonic_ms()
                if left_ms <= 0:
                    raise UnavailableError(
                        "state_busy", "another process owns the state", {"waited_ms": wait_ms}
                    )
                time.sleep(min(_POLL_MS, left_ms) / 1000)
        except OSError as error:
            raise unavailable(error) from error
        finally:
            os.close(directory)

    def release(self) -> None:
        """Give the lock up, even where a forked child has it open; a second call does nothing."""
        if self.descriptor < 0:
            return
        descriptor, self.descriptor = self.descriptor, -1
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _directory(state_dir: str) -> int:
    try:
        return os.open(state_dir, _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RefusedError("not_initialised", "there is no state directory") from error
    except OSError as error:
        raise unavailable(error) from error


def _locked(directory: int) -> int | None:
    """Return a locked descriptor of the file that carries the name now, or None."""
    descriptor = _opened(directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _current(descriptor, directory):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _opened(directory: int) -> int:
    try:
        descriptor = _existing(directory)
    except FileNotFoundError:
        descriptor = _created(directory)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            raise _insecure() from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise _insecure()


def _existing(directory: int) -> int:
    try:
        return os.open(LOCK, os.O_RDWR | _OPEN, dir_fd=directory)
    except OSError as error:
        if error.errno not in _READ_ONLY_ERRORS:
            raise
    return os.open(LOCK, os.O_RDONLY | _OPEN, dir_fd=directory)


def _created(directory: int) -> int:
    try:
        made = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, _PRIVATE, dir_fd=directory)
    except FileExistsError:
        return _existing(directory)  # another command was faster
    try:
        os.fchmod(made, _PRIVATE)  # whatever the umask says
    except BaseException:
        os.close(made)
        raise
    return made


def _current(descriptor: int, directory: int) -> bool:
    """Tell whether the locked file still has its name: a removed one locks nobody out."""
    try:
        named = os.stat(LOCK, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _insecure() -> RefusedError:
    return RefusedError(
        "state_insecure",
        "the lock file is not a file of its own: end what uses this state, then remove it",
    )
