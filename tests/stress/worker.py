"""One of the racing processes: dispatch pages until nothing is due, or until killed.

Called as `worker.py STORE LOG NAME`. Each execution appends one line to LOG with a single write.
"""

import json
import os
import sys
import time

from qinglong_edge.domain.action import Plan
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.execution import Dispatch, Outcome
from qinglong_edge.domain.tick import Reading
from qinglong_edge.executor.ambient import SystemClocks, system_entropy
from qinglong_edge.executor.invoke import Outstanding
from qinglong_edge.ports.handlers import (
    ActionHandler,
    HandlerAnswer,
    HandlerContext,
    Inspection,
    Readiness,
)
from qinglong_edge.ports.probe import no_probe
from qinglong_edge.runtime.dispatcher import Dispatcher
from qinglong_edge.runtime.execution import Desk
from qinglong_edge.storage.sqlite.approvals import SqliteApprovals
from qinglong_edge.storage.sqlite.dispatches import SqliteDispatches
from qinglong_edge.storage.sqlite.transaction import Database
from tests.contract.adapters import connect
from tests.support.clock import WALL_MS
from tests.support.handlers import Plain

PAGE = 4


class SteadyClocks:
    """Read the real boot and monotonic time; the wall follows them from a believable start."""

    def __init__(self) -> None:
        self._system = SystemClocks()

    def read(self) -> Reading:
        real = self._system.read()
        return Reading(WALL_MS + real.boot_ms, real.boot_ms, real.boot_id)

    def monotonic_ms(self) -> int:
        return self._system.monotonic_ms()


class Appender(Plain):
    """Carry `shell.exec` by writing the dispatch id to a file; a file remembers every call."""

    action_type = "shell.exec"

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def check(self, plan: Plan) -> None:
        raise NotImplementedError

    def preview(self, plan: Plan) -> JsonObject:
        raise NotImplementedError

    def deadline_ms(self, plan: Plan) -> int:
        return 5_000

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:
        return Inspection(Readiness.READY, dispatch.action.action_digest)

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        os.write(self._log, f"{context.idempotency_key}\n".encode())
        return HandlerAnswer(Outcome.SUCCEEDED, "written")


class One:
    """Carry one type."""

    def __init__(self, handler: ActionHandler) -> None:
        self._handler = handler

    def find(self, action_type: str) -> ActionHandler | None:
        return self._handler if action_type == self._handler.action_type else None

    def inspect_deadline_ms(self, action_type: str) -> int:
        return 5_000


def open_store(path: str, clocks: SteadyClocks) -> Database:
    connection = connect(path)
    connection.execute("PRAGMA synchronous = FULL")
    return Database(connection, clocks, probe=no_probe)


def dispatcher(opened: Database, log: str, owner: str) -> Dispatcher:
    clocks = SteadyClocks()
    desk = Desk(
        SqliteDispatches(opened), Outstanding(clocks), clocks, system_entropy, no_probe, owner
    )
    return Dispatcher(desk, SqliteApprovals(opened), One(Appender(log)))


def main(path: str, log: str, owner: str) -> None:
    """Work until three looks in a row find nothing due; print what was counted."""
    opened = open_store(path, SteadyClocks())
    working = dispatcher(opened, log, owner)
    total: dict[str, int] = {}
    print("ready", flush=True)
    sys.stdin.readline()
    idle = 0
    while idle < 3:
        done = working.dispatch_page(None, PAGE, lambda: True)
        for name, number in done.counts.items():
            total[name] = total.get(name, 0) + number
        idle = idle + 1 if not done.counts["scanned"] else 0
        if idle:
            time.sleep(0.05)
    print(json.dumps(total), flush=True)
    opened.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
