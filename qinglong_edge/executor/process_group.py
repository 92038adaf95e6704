"""Prove from the process table that a process group has no living member."""

import os

_STAT_BYTES = 1_024
_STAT_PGRP, _STAT_THREADS = 2, 17  # fields 5 and 20 of /proc/PID/stat, counted after the name
_DEAD = (b"Z", b"X", b"x")


def group_empty(pgid: int) -> bool:
    """Tell whether the process table shows no living member of a process group.

    A zombie is dead unless threads of it still run. A table without this process proves nothing
    and answers False; one that cannot be read raises `OSError`.
    """
    names = os.listdir("/proc")
    if str(os.getpid()) not in names:
        return False
    return not any(_lives_in(pgid, name) for name in names if name.isdigit())


def _lives_in(pgid: int, name: str) -> bool:
    try:
        fd = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    try:
        text = os.read(fd, _STAT_BYTES)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    fields = text[text.rindex(b")") + 2 :].split()
    dead = fields[0] in _DEAD and int(fields[_STAT_THREADS]) <= 1
    return int(fields[_STAT_PGRP]) == pgid and not dead
