"""Make sure that only the owner of a state directory opens it (architecture 3.2).

Root acting on somebody's state becomes that somebody before it opens anything inside, so that no
file there is ever root's, and nothing planted there is ever opened with root's power.
"""

import os
import pwd
import stat
from typing import NamedTuple

from qinglong_edge.domain.errors import RefusedError
from qinglong_edge.storage.filesystem import unavailable

_ROOT = 0
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Custody(NamedTuple):
    """Hold who owns a state directory, and so who this process now is."""

    uid: int
    gid: int


def become_owner(state_dir: str) -> Custody:
    """Check the state directory and make this process its owner; root gives its power up for good.

    Nothing inside is opened. Raises `RefusedError`: `not_initialised` where it is missing,
    `state_insecure` for a symbolic link, something else than a directory or one that others may
    enter, `state_not_owned` for any other user, `state_unreachable` where a parent directory keeps
    the owner out; and `UnavailableError`.
    """
    found = _state(state_dir)
    me = os.geteuid()
    if me not in {_ROOT, found.st_uid}:
        raise RefusedError(
            "state_not_owned",
            f"this state belongs to uid {found.st_uid}; run as that user, or as root",
            {"uid": found.st_uid},
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise RefusedError("state_insecure", f"others may enter the state: chmod 0700 {state_dir}")
    if me == found.st_uid:
        return Custody(me, os.getegid())
    owner = Custody(found.st_uid, _group_of(found))
    _become(owner)
    if not os.path.samestat(_state(state_dir), found):
        raise RefusedError("state_insecure", "the state directory was replaced meanwhile")
    return owner


def _state(state_dir: str) -> os.stat_result:
    try:
        # A trailing slash would let the kernel follow a symbolic link after all.
        directory = os.open(state_dir.rstrip("/") or "/", _LOOK)
    except FileNotFoundError as error:
        raise RefusedError("not_initialised", f"there is no state directory {state_dir}") from error
    except NotADirectoryError as error:
        raise RefusedError("state_insecure", "the state is not a directory itself") from error
    except PermissionError as error:
        raise RefusedError("state_unreachable", "a parent directory keeps its owner out") from error
    except OSError as error:
        raise unavailable(error) from error
    try:
        return os.fstat(directory)
    finally:
        os.close(directory)


def _group_of(found: os.stat_result) -> int:
    """Return the owner's own group; an owner without a name gets the directory's, never root's."""
    try:
        return pwd.getpwuid(found.st_uid).pw_gid
    except KeyError:
        return found.st_gid or found.st_uid


def _groups_of(owner: Custody) -> list[int]:
    try:
        return os.getgrouplist(pwd.getpwuid(owner.uid).pw_name, owner.gid)
    except KeyError:
        return []


def _become(owner: Custody) -> None:
    try:
        os.setgroups(_groups_of(owner))
        os.setresgid(owner.gid, owner.gid, owner.gid)
        os.setresuid(owner.uid, owner.uid, owner.uid)
    except OSError as error:
        raise RefusedError("state_not_owned", "this root may not become the owner") from error
