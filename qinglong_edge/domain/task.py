"""A task: what a run runs. Its revisions are immutable; a run is bound to one of them.

The task file is {schema_version, task_id, name, argv, cwd?, env?, timeout_ms?, overlap?}, exact.
What is stored is that with every default filled in, so a revision never changes its meaning.
"""

import enum
import re
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.action import check_path
from qinglong_edge.domain.canonical import Fields, Json, JsonObject, canonical_bytes, ordered
from qinglong_edge.domain.command_line import parse_argv, parse_env

TASK_SCHEMA_VERSION = 1

_REVISION = re.compile(r"r([1-9][0-9]{0,9})")


class Overlap(enum.StrEnum):
    """Name what happens to a run of a task that has a live one."""

    REFUSE = "refuse"
    ALLOW = "allow"


class Task(NamedTuple):
    """Hold a task, proven and with its defaults filled in."""

    task_id: str
    name: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    timeout_ms: int
    overlap: Overlap


class TaskRevision(NamedTuple):
    """Hold one stored revision; `dispatch_id` names the action that published it."""

    task_id: str
    project_id: str
    number: int
    name: str
    body: bytes
    dispatch_id: str
    created_at_ms: int


def parse_task(value: JsonObject, what: str) -> Task:
    """Read a task file's object; raises `UsageError`."""
    fields = Fields(value, what)
    version = fields.take("schema_version")
    ids.check_int(version, f"{what}.schema_version", least=1, most=TASK_SCHEMA_VERSION)
    task_id = check_task_id(fields.take("task_id"), f"{what}.task_id")
    name = ids.check_text(fields.take("name"), f"{what}.name", most=limits.TASK_NAME_CHARS_MAX)
    argv = parse_argv(fields.take("argv"), f"{what}.argv")
    cwd = check_path(fields.maybe("cwd", "/"), f"{what}.cwd")
    env = parse_env(fields.maybe("env", {}), f"{what}.env")
    timeout_ms = ids.check_int(
        fields.maybe("timeout_ms", limits.RUN_TIMEOUT_MS_DEFAULT),
        f"{what}.timeout_ms",
        least=1,
        most=limits.RUN_TIMEOUT_MS_MAX,
    )
    overlap = fields.maybe("overlap", Overlap.REFUSE.value)
    fields.done()
    if not isinstance(overlap, str) or overlap not in set(Overlap):
        raise ids.invalid(f"{what}.overlap", "must be refuse or allow")
    return Task(task_id, name, argv, cwd, env, timeout_ms, Overlap(overlap))


def check_task_id(value: object, field: str) -> str:
    """Return a task id; with its revision it still is an identifier of 64 characters."""
    return ids.check_ident(value, field, most=limits.TASK_ID_CHARS_MAX)


def task_json(task: Task) -> dict[str, Json]:
    """Return the whole task file of a task."""
    return {
        "schema_version": TASK_SCHEMA_VERSION,
        "task_id": task.task_id,
        "name": task.name,
        "argv": list(task.argv),
        "cwd": task.cwd,
        "env": ordered(task.env),
        "timeout_ms": task.timeout_ms,
        "overlap": task.overlap.value,
    }


def task_body(task: Task) -> bytes:
    """Return the canonical bytes of a revision."""
    return canonical_bytes(task_json(task))


def revision_text(number: int) -> str:
    """Return how people and plans name a revision."""
    return f"r{number}"


def parse_revision(value: object, field: str) -> int:
    """Read a revision's name; raises `UsageError`."""
    found = _REVISION.fullmatch(value) if isinstance(value, str) else None
    number = 0 if found is None else int(found[1])
    if not 1 <= number <= limits.VERSION_MAX:
        raise ids.invalid(field, "must be r and a number, like r1")
    return number
