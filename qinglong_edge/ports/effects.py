"""What actions on this database ask of it: their effect once, and a look at what it left."""

from typing import Protocol

from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.effect import Perform
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.receipt import Found
from qinglong_edge.domain.task import TaskRevision
from qinglong_edge.ports.handlers import HandlerAnswer


class Effects(Protocol):
    """Have an effect at most once, and prove it."""

    def perform(self, event: Perform) -> HandlerAnswer | DispatchRefusal:
        """Have the effect of a started action, with its receipt, in one commit.

        One that was had before is answered alike and changes nothing.
        """
        ...

    def receipt(self, dispatch_id: str) -> Found | None:
        """Return in one read what a dispatch left; None where there is no such dispatch."""
        ...


class Tasks(Protocol):
    """Find tasks and their revisions."""

    def find(self, task_id: str, number: int | None = None) -> TaskRevision | None:
        """Return one revision, or the newest; raises `DamagedError`."""
        ...

    def page(self, after: Cursor | None, limit: int) -> Page[TaskRevision]:
        """Return one page of tasks, each with its newest revision."""
        ...
