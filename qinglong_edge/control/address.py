"""The place of the socket in the file system: paths of any length, never through a symbolic link.

The kernel takes 107 bytes of a socket's path. So the directory is opened first and the name is
reached through `/proc/self/fd`; a name that is too long even so gets its place by a hard link.
"""

import errno
import os
import socket
import stat
from contextlib import suppress

from qinglong_edge.domain.errors import RefusedError, UnavailableError, UsageError
from qinglong_edge.storage.filesystem import unavailable

PATH_BYTES_MAX = 4_095
BACKLOG = 64
MODE_PRIVATE = 0o600
MODE_GROUP = 0o660
MODE_DIRECTORY = 0o750

_KERNEL_BYTES_MAX = 107
_NODE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class Listening:
    """Hold a listening socket and its place; both descriptors of the place stay open.

    They pin the node, so that no later one can have its number, and reach it whatever happens to
    the directories above. The listening socket itself is closed by whoever serves it.
    """

    def __init__(self, listener: socket.socket, directory: int, name: str) -> None:
        """Take over a bound socket, and the descriptor of the directory it has its name in."""
        self.listener = listener
        self._directory = directory
        self._name = name
        self._node = os.open(name, _NODE, dir_fd=directory)

    def admit(self, mode: int, group: int | None) -> None:
        """Set group and mode, group first: nobody gains anything in between."""
        path = f"/proc/self/fd/{self._node}"
        if group is not None:
            os.chown(path, -1, group)
        os.chmod(path, mode)

    def remove(self) -> None:
        """Take the name away if it is still ours; a second call does nothing.

        A process that gave up root since may not do so; the next owner replaces what stays.
        """
        if self._node < 0:
            return
        with suppress(OSError):
            named = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
            if os.path.samestat(named, os.fstat(self._node)):
                os.unlink(self._name, dir_fd=self._directory)
        os.close(self._node)
        os.close(self._directory)
        self._node = self._directory = -1


def listen(
    path: str, *, state_dir: str, group: int | None = None, replace: bool = False
) -> Listening:
    """Bind `path` and listen: mode 0600, or 0660 for the members of `group`.

    With `group` the path must lie outside `state_dir`, and its directory is made (0750, with that
    group) where it is missing. `replace` removes a socket that nobody listens on any more: only
    the holder of the owner lock may say so. Raises `UsageError` (`invalid_socket`,
    `socket_in_state`), `RefusedError` (`socket_exists`, `socket_in_use`, `not_a_socket`,
    `socket_not_allowed`, `socket_place_missing`), and `UnavailableError`.
    """
    parent, name = _split(path)
    if group is not None:
        _prepare(parent, state_dir, group)
    try:
        directory = os.open(parent, _DIRECTORY)
    except OSError as error:
        raise _unusable(error) from error
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        if replace:
            _remove_stale(directory, name)
        _bind(listener, directory, name)
        listening = Listening(listener, directory, name)
    except BaseException as error:
        listener.close()
        os.close(directory)
        if isinstance(error, OSError):
            raise _unusable(error) from error
        raise
    try:
        listening.admit(MODE_PRIVATE if group is None else MODE_GROUP, group)
        listener.listen(BACKLOG)  # nobody can connect before this
    except BaseException as error:
        listening.remove()
        listener.close()
        if isinstance(error, OSError):
            raise _unusable(error) from error
        raise
    return listening


def connect(path: str) -> socket.socket:
    """Return a connected socket that does not block.

    Raises `OSError`: `BlockingIOError` where the owner's backlog is full, `FileNotFoundError`,
    `NotADirectoryError` and `ConnectionRefusedError` where nobody listens; `UsageError`; and
    `RefusedError` (`not_a_socket`) for anything else of that name, a symbolic link included.
    """
    _split(path)
    return _connect(path, None)


def _connect(name: str, directory: int | None) -> socket.socket:
    node = os.open(name, _NODE, dir_fd=directory)
    try:
        if not stat.S_ISSOCK(os.fstat(node).st_mode):
            raise RefusedError("not_a_socket", "what has the name of the socket is none")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect(f"/proc/self/fd/{node}")
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(node)


def _split(path: str) -> tuple[str, str]:
    """Return directory and name; the file system judges the length of the name."""
    parent, name = os.path.split(path)
    if "\0" in path or name in {"", ".", ".."} or len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise UsageError("invalid_socket", "the socket must have the path of a file")
    return parent or ".", name


def _prepare(parent: str, state_dir: str, group: int) -> None:
    """Make the directory of a socket that a group may reach."""
    state, real = os.path.realpath(state_dir), os.path.realpath(parent)
    if os.path.commonpath([state, real]) == state:
        raise UsageError("socket_in_state", "a socket for a group must lie outside the state")
    try:
        os.mkdir(parent, 0o700)
    except FileExistsError:
        return
    except OSError as error:
        raise _unusable(error) from error
    try:
        made = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(made, -1, group)
            os.fchmod(made, MODE_DIRECTORY)
        finally:
            os.close(made)
    except OSError as error:
        with suppress(OSError):
            os.rmdir(parent)
        raise _unusable(error) from error


def _remove_stale(directory: int, name: str) -> None:
    try:
        _connect(name, directory).close()
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(name, dir_fd=directory)
        return
    except OSError as error:  # somebody else's backlog, or not a stream: in any case not ours
        raise _in_use() from error
    raise _in_use()


def _in_use() -> RefusedError:
    return RefusedError("socket_in_use", "another program listens on that socket")


def _bind(listener: socket.socket, directory: int, name: str) -> None:
    """Give the socket its name, which must be free, with a private mode from the first moment."""
    os.fchmod(listener.fileno(), MODE_PRIVATE)
    at = f"/proc/self/fd/{directory}/"
    if len(os.fsencode(at + name)) <= _KERNEL_BYTES_MAX:
        listener.bind(at + name)
        return
    short = f".socket-{os.getpid()}"
    listener.bind(at + short)
    try:
        os.link(short, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    finally:
        os.unlink(short, dir_fd=directory)


def _unusable(error: OSError) -> RefusedError | UnavailableError:
    """Translate what the system says of a place that was asked for."""
    if isinstance(error, FileExistsError) or error.errno == errno.EADDRINUSE:
        return RefusedError("socket_exists", "something has the name of the socket already")
    if isinstance(error, PermissionError):
        return RefusedError("socket_not_allowed", "this user may not make the socket there")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return RefusedError("socket_place_missing", "there is no directory for the socket")
    return unavailable(error)
