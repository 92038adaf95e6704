"""What init writes and everybody reads: the identity and the choices of one state."""

import sqlite3
from typing import NamedTuple

from qinglong_edge.domain.identity import PasswordHash
from qinglong_edge.domain.policy import Subject
from qinglong_edge.domain.tick import Reading, first_mark
from qinglong_edge.ports.probe import CrashPoint, Moment, Probe, Step
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite import clockwork
from qinglong_edge.storage.sqlite.failures import translating
from qinglong_edge.storage.sqlite.transaction import immediate

SQL = statements.load("qinglong_edge.storage.sqlite", "sql/meta.sql")


class Meta(NamedTuple):
    """Hold the row of `meta` with its project."""

    state_id: str
    project_id: str
    profile: str
    owner: str
    enable: tuple[str, ...]
    volatile: bool
    journal: str
    file_system: str
    created_at_ms: int


def read(connection: sqlite3.Connection) -> Meta | None:
    """Return what init recorded; None where init has not finished."""
    with translating():
        row = connection.execute(SQL["meta"]).fetchone()
    if row is None:
        return None
    enable = tuple(word for word in row["enable"].split(",") if word)
    return Meta(
        row["state_id"],
        row["project_id"],
        row["profile"],
        row["owner"],
        enable,
        row["volatile"] == 1,
        row["journal"],
        row["file_system"],
        row["created_at_ms"],
    )


def create(
    connection: sqlite3.Connection,
    meta: Meta,
    password: PasswordHash,
    *,
    reading: Reading,
    probe: Probe,
) -> Meta:
    """Write project, meta, first mark, first user and first role in one commit."""
    at_ms = first_mark(reading).wall_ms
    owner = str(Subject.user(meta.owner))
    with translating(), immediate(connection):
        clockwork.create(connection, reading)
        project = {"project_id": meta.project_id, "name": meta.project_id, "slug": meta.project_id}
        connection.execute(SQL["add_project"], {**project, "at_ms": at_ms})
        row = {**meta._asdict(), "enable": ",".join(meta.enable), "at_ms": at_ms}
        connection.execute(SQL["add_meta"], row)
        connection.execute(
            SQL["add_owner"],
            {**password._asdict(), "subject": owner, "at_ms": at_ms},
        )
        connection.execute(SQL["add_owner_binding"], {"subject": owner, "at_ms": at_ms})
        probe(CrashPoint(Moment.BEFORE, Step.INIT))
    probe(CrashPoint(Moment.AFTER, Step.INIT))
    return meta._replace(created_at_ms=at_ms)
