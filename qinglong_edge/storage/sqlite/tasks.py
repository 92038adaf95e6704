"""Tasks on SQLite: reading only; a revision is written by the action that publishes it."""

from qinglong_edge.domain import paging
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.task import TaskRevision
from qinglong_edge.storage.sqlite import actions, effects
from qinglong_edge.storage.sqlite.effects import SQL
from qinglong_edge.storage.sqlite.transaction import Database, Tx


class SqliteTasks:
    """Find tasks and their revisions."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def find(self, task_id: str, number: int | None = None) -> TaskRevision | None:
        """Return one revision, or the newest; raises `DamagedError`."""

        def look(tx: Tx) -> TaskRevision | None:
            if number is None:
                return effects.newest_revision(tx, task_id)
            return effects.numbered_revision(tx, task_id, number)

        return self._database.read(look)

    def page(self, after: Cursor | None, limit: int) -> Page[TaskRevision]:
        """Return one page of tasks, the first published first, each with its newest revision."""
        most = paging.check_limit(limit)
        key = -1 if after is None else after.key
        found = self._database.read(
            lambda tx: tx.rows(SQL["list_tasks"], after_key=key, limit=most + 1)
        )
        shown = found[:most]
        items, damaged = actions.read_each(shown, effects.revision_from_row)
        last = shown[-1]["first_key"] if len(found) > most else None
        cursor = None if last is None else Cursor(0, last)
        return Page(items, cursor, damaged)
