"""Prove from the process table that a process group has no living member."""

import os

from qinglong_edge.executor.process_identity import read_stat


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
        found = read_stat(name)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return found.pgid == pgid and not found.dead
