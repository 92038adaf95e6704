"""Prove what becomes the command line of a process: arguments and environment, nothing inherited.

Shared by `shell.exec` and by tasks, so that both accept exactly the same.
"""

import re
from collections.abc import Mapping

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.canonical import Json

RESERVED_PREFIX = "QINGLONG_EDGE_"
ENV_ITEMS_MAX = 64

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_ARGUMENT = re.compile(r"[\x00\ud800-\udfff]")


def parse_argv(value: Json, field: str) -> tuple[str, ...]:
    """Return the program and its arguments; raises `UsageError`."""
    most = limits.ARGV_ITEMS_MAX
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise ids.invalid(field, f"must be a list of 1 to {most} texts")
    argv = tuple(_check_argument(item, f"{field}[]") for item in value)
    if not argv[0]:
        raise ids.invalid(f"{field}[0]", "must not be empty")
    return argv


def parse_env(value: Json, field: str) -> dict[str, str]:
    """Return the variables that a process gets besides the fixed ones; raises `UsageError`."""
    if not isinstance(value, Mapping) or len(value) > ENV_ITEMS_MAX:
        raise ids.invalid(field, f"must be an object of at most {ENV_ITEMS_MAX} members")
    for name in value:
        if not _ENV_NAME.fullmatch(name):
            raise ids.invalid(field, "names must be letters, digits and _")
        if name.startswith(RESERVED_PREFIX):
            raise ids.invalid(field, f"names must not begin with {RESERVED_PREFIX}")
    return {name: _check_argument(item, field) for name, item in value.items()}


def _check_argument(value: Json, field: str) -> str:
    """Return what `execve` can carry: any text, empty too, without NUL and lone surrogates."""
    if not isinstance(value, str) or _NOT_ARGUMENT.search(value):
        raise ids.invalid(field, "must be text without NUL")
    return value
