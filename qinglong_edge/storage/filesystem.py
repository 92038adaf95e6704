"""Tell what a directory lies on, and whether it can carry the store (architecture 3.2, 3.8).

A store in memory forgets its approvals at the next boot; one on a network breaks the promise of
one owner; one without hard links or private modes cannot publish a receipt. All three are refused
before anything of the store is written there.
"""

import errno
import os
import stat
from typing import NamedTuple

from qinglong_edge.domain.errors import RefusedError, UnavailableError
from qinglong_edge.ports.ambient import Entropy

MOUNTS = "/proc/self/mountinfo"

_VOLATILE = frozenset({"tmpfs", "ramfs", "rootfs", "devtmpfs"})
_MEMORY_DEVICES = ("/dev/ram", "/dev/zram")  # a real file system on a disk made of memory
_NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf",
    }
)  # fmt: skip
_NETWORK_FUSE = frozenset(
    {"ceph", "curlftpfs", "davfs2", "glusterfs", "rclone", "s3fs", "smbnetfs", "sshfs", "vmhgfs"}
)
_OVERLAYS = frozenset({"overlay", "overlayfs"})
_PRIVATE = 0o600
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNAVAILABLE = {
    errno.ENOSPC: ("disk_full", "no space left on the device"),
    errno.EDQUOT: ("disk_full", "the quota of the user is used up"),
    errno.EROFS: ("read_only", "the file system cannot be written"),
    errno.ENOMEM: ("out_of_memory", "not enough memory"),
}


PROBE_PREFIX = ".probe-"  # of every file that a probe makes; a killed one leaves some


class FileSystem(NamedTuple):
    """Hold what a directory lies on; `type` is the kernel's word, empty where it cannot be told."""

    type: str
    volatile: bool
    network: bool
    source: str = ""


class _Mount(NamedTuple):
    device: str
    point: str
    type: str
    source: str
    options: str


def unavailable(error: OSError) -> UnavailableError:
    """Return our error for one of the system's; foreign text stays in `__cause__`."""
    known = _UNAVAILABLE.get(error.errno or 0)
    return UnavailableError(*(known or ("storage_error", "the storage failed")))


def describe(path: str, *, mountinfo: str = MOUNTS) -> FileSystem:
    """Return what `path`, or its nearest parent that exists, lies on.

    The mount is the one with the device of `path` and the longest mount point above it; where no
    device fits (btrfs subvolumes have their own) the longest mount point decides. An overlay is as
    volatile as the directory that takes its writes. Where the kernel lists no mounts the type is
    empty and nothing is claimed. Raises `UnavailableError`.
    """
    mounts = _mounts(mountinfo)
    found = _mount_of(path, mounts)
    if found is None:
        return FileSystem("", volatile=False, network=False)
    upper = _upper_directory(found)
    below = _mount_of(upper, mounts) if upper is not None and os.path.isdir(upper) else None
    return FileSystem(
        found.type,
        volatile=_volatile(found) or (below is not None and _volatile(below)),
        network=_network(found.type) or (below is not None and _network(below.type)),
        source=found.source,
    )


def require_durable(found: FileSystem, *, allow_volatile: bool) -> None:
    """Refuse memory (unless allowed) with `state_volatile`, a network with `state_on_network`."""
    if found.network:
        raise RefusedError(
            "state_on_network", "the state must lie on a local file system", {"type": found.type}
        )
    if found.volatile and not allow_volatile:
        raise RefusedError(
            "state_volatile",
            "this directory lies in memory and is lost at the next boot",
            {"type": found.type},
        )


def check_links(directory: str, entropy: Entropy) -> None:
    """Prove that `directory` has private modes and hard links that never replace a name.

    Makes three names of its own there and removes them whatever happens. Raises `RefusedError`
    `filesystem_without_modes` or `filesystem_without_links`, and `UnavailableError`.
    """
    stem = f"{PROBE_PREFIX}{entropy(8).hex()}"
    try:
        at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unavailable(error) from error
    names = tuple(f"{stem}-{end}" for end in ("first", "second", "linked"))
    try:
        _check_modes(names[0], at)
        _check_modes(names[1], at)
        _check_link(names, at)
    except OSError as error:
        raise unavailable(error) from error
    finally:
        for name in names:
            _remove(name, at)
        os.close(at)


def _check_modes(name: str, at: int) -> None:
    made = os.open(name, _NEW, _PRIVATE, dir_fd=at)
    try:
        os.fchmod(made, _PRIVATE)
        kept = stat.S_IMODE(os.fstat(made).st_mode) == _PRIVATE
    except PermissionError:
        kept = False
    finally:
        os.close(made)
    if not kept:
        raise RefusedError(
            "filesystem_without_modes", "this file system does not keep a file private"
        )


def _check_link(names: tuple[str, ...], at: int) -> None:
    first, second, linked = names
    try:
        os.link(first, linked, src_dir_fd=at, dst_dir_fd=at)
    except OSError as error:
        if error.errno in _UNAVAILABLE or error.errno == errno.EIO:
            raise
        raise _without_links() from error
    if not os.path.samestat(os.stat(first, dir_fd=at), os.stat(linked, dir_fd=at)):
        raise _without_links()
    try:
        os.link(first, second, src_dir_fd=at, dst_dir_fd=at)
    except FileExistsError:
        return
    raise _without_links()


def _without_links() -> RefusedError:
    return RefusedError("filesystem_without_links", "this file system has no usable hard links")


def _remove(name: str, at: int) -> None:
    try:
        os.unlink(name, dir_fd=at)
    except OSError:
        return  # never made, or the storage failed and its error is already on its way


def _mounts(mountinfo: str) -> tuple[_Mount, ...]:
    try:
        with open(mountinfo, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unavailable(error) from error
    return tuple(found for line in lines if (found := _mount(line)) is not None)


def _mount(line: bytes) -> _Mount | None:
    """Read `36 35 98:0 /root /point options [optional]... - type source super-options`."""
    before, found, after = line.partition(b" - ")
    left, right = before.split(b" "), after.split(b" ")
    if not found or len(left) < 6 or len(right) < 3:  # noqa: PLR2004  # the fields above
        return None
    return _Mount(*map(_decoded, (left[2], left[4], right[0], right[1], right[2])))


def _decoded(field: bytes) -> str:
    """Undo the kernel's escapes: a backslash and three octal digits, for blanks and itself."""
    head, *rest = field.split(b"\\")
    for part in rest:
        code = part[:3]
        plain = len(code) == 3 and all(digit in b"01234567" for digit in code)  # noqa: PLR2004
        head += bytes([int(code, 8) & 0xFF]) + part[3:] if plain else b"\\" + part
    return os.fsdecode(head)


def _mount_of(path: str, mounts: tuple[_Mount, ...]) -> _Mount | None:
    real, device = _place(path)
    above = [found for found in mounts if _contains(found.point, real)]
    fitting = [found for found in above if found.device == device] or above
    best = None
    for found in fitting:  # of two mounts on one point the later one is seen
        if best is None or len(found.point) >= len(best.point):
            best = found
    return best


def _place(path: str) -> tuple[str, str]:
    real = os.path.realpath(path)
    while True:
        try:
            device = os.stat(real).st_dev
        except (FileNotFoundError, NotADirectoryError):
            real = os.path.dirname(real)
            continue
        except OSError as error:
            raise unavailable(error) from error
        return real, f"{os.major(device)}:{os.minor(device)}"


def _contains(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _volatile(found: _Mount) -> bool:
    return found.type in _VOLATILE or found.source.startswith(_MEMORY_DEVICES)


def _network(word: str) -> bool:
    return word in _NETWORK or word.removeprefix("fuse.").removesuffix("-fuse") in _NETWORK_FUSE


def _upper_directory(found: _Mount) -> str | None:
    if found.type not in _OVERLAYS:
        return None
    for option in found.options.split(","):
        if option.startswith("upperdir=/"):
            return option.removeprefix("upperdir=")
    return None
