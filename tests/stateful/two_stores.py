"""Two stores under one clock, given the same commands: the model, and SQLite that may fail."""

import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from qinglong_edge.domain import resolution
from qinglong_edge.domain.authorization import AuthorizationFact, FactKind
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.machines import TERMINAL, ControlStatus
from qinglong_edge.domain.recovery import Source
from qinglong_edge.storage.sqlite import facts
from qinglong_edge.storage.sqlite.transaction import Tx
from tests.contract.adapters import (
    Fault,
    FaultyConnection,
    ModelRepositories,
    Ports,
    SqliteRepositories,
    copied,
    make_store,
)
from tests.contract.story import names
from tests.support.builders import ANA, BOB, BOT, PROJECT
from tests.support.clock import FakeClocks

Call = Callable[[Ports], object]
OWNER = "owner-1"


@cache
def template() -> tuple[str, object]:
    """Return a closed store that every life starts from; it goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="qinglong-life-")
    path = str(Path(folder.name) / "template.db")
    make_store(path, FakeClocks())
    return path, folder


class TwoStores:
    """Give every command to both, compare what they answer and what they then hold."""

    def __init__(self, actions: int) -> None:
        self.clocks = FakeClocks()
        self.numbers = range(1, actions + 1)
        self.model = ModelRepositories(self.clocks)
        self._folder = Path(tempfile.mkdtemp(prefix="qinglong-life-"))
        self.sqlite = SqliteRepositories(copied(template()[0], self._folder), self.clocks)
        self._second = self.sqlite.second_session()
        self.fault: Fault | None = None
        self.starts: dict[str, int] = {}
        self._ended: dict[int, Record] = {}
        self._known: dict[int, Record] = {}

    def close(self) -> None:
        self.sqlite.close()
        shutil.rmtree(self._folder)

    def restart(self) -> None:
        """Close SQLite's file and open it again."""
        self.sqlite.close()
        self.sqlite = SqliteRepositories(self.sqlite.path, self.clocks)
        self._second = self.sqlite.second_session()

    def raise_project(self) -> None:
        for each in (self.model, self.sqlite):
            each.raise_project_version()

    def record(self, n: int) -> Record | None:
        return self.model.ports.approvals.find(f"apr-{n}")

    def do(self, call: Call, *, session: int = 0) -> object:
        """Run one command on both; a staged fault meets SQLite's next commit of it."""
        fault, self.fault = self.fault, None
        connection = self.sqlite.database.connection
        assert isinstance(connection, FaultyConnection)
        connection.fault = fault
        asked = self._second if session and fault is None else self.sqlite.ports
        before = {n: self.record(n) for n in self.numbers}
        expected, answer = call(self.model.ports), call(asked)
        lost = fault is Fault.LOST_ANSWER and connection.fault is None
        connection.fault = None
        if not lost:
            assert kinds(answer) == kinds(expected)
            assert answer == expected
        elif not isinstance(expected, int):
            assert all(map(told_again, flat(expected), flat(answer)))
        self._count_starts(before)
        return expected

    def _count_starts(self, before: dict[int, Record | None]) -> None:
        for n in self.numbers:
            if not started(before[n]) and started(self.record(n)):
                self.starts[f"dsp-{n}"] = self.starts.get(f"dsp-{n}", 0) + 1

    def check(self) -> None:
        """Compare what both hold, record by record, and the rules that no step may break."""
        model, sqlite = self.model.ports, self.sqlite.ports
        for n in self.numbers:
            found = sqlite.approvals.find(f"apr-{n}")
            assert found == model.approvals.find(f"apr-{n}")
            left = sqlite.effects.receipt(f"dsp-{n}")
            assert left == model.effects.receipt(f"dsp-{n}")
            if found is not None:
                self._check_record(n, found)
        for subject in (ANA, BOB, BOT):
            seen = sqlite.policy.resolve(PROJECT, subject)[1]
            assert seen == model.policy.resolve(PROJECT, subject)[1]
        assert sqlite.overview.instant().now == model.overview.instant().now
        assert sqlite.overview.backlog() == model.overview.backlog()
        assert sqlite.overview.work_waits(OWNER) == model.overview.work_waits(OWNER)
        for mine, other in (
            (sqlite.dispatches, model.dispatches),
            (sqlite.recoveries, model.recoveries),
        ):
            assert names(mine.list_due(None, 64).items) == names(other.list_due(None, 64).items)
        assert sqlite.tasks.page(None, 64).items == model.tasks.page(None, 64).items
        assert all(times <= 1 for times in self.starts.values())
        self._check_rows()

    def _check_record(self, n: int, found: Record) -> None:
        if found.progress is None:
            assert found.resolution is None
            return
        execution, control = found.progress
        over = execution.status in TERMINAL
        assert (control is None) == (execution.started_at_ms is None)
        if control is not None:
            assert (control.status is ControlStatus.RESOLVED) == over
            assert control.execution_version == execution.version
        self._check_forward(n, found)
        if over:
            assert self._ended.setdefault(n, found) == found
        assert over or found.resolution is None

    def _check_forward(self, n: int, found: Record) -> None:
        """Compare with what was there before: versions and stamps never run back."""
        before = self._known.get(n, found).progress
        self._known[n] = found
        if before is None or found.progress is None:
            return
        was, now = before.execution, found.progress.execution
        assert now.version >= was.version
        assert now.updated_at_ms >= was.updated_at_ms
        assert was.started_at_ms in {None, now.started_at_ms}
        if now.version == was.version and before.control == found.progress.control:
            assert now == was

    def _check_rows(self) -> None:
        """Prove that facts stand beside words of people, and what an effect left beside starts."""
        database = self.sqlite.database
        for n in self.numbers:
            found = self.sqlite.ports.approvals.find(f"apr-{n}")
            if found is not None:
                fact = database.read(partial(fact_of, found))
                human = found.resolution is not None and found.resolution.source is Source.HUMAN
                assert (fact is not None) == human
        sql = (
            "SELECT (SELECT count(*) FROM action_receipts) = (SELECT count(*) FROM runs) +"
            " (SELECT count(*) FROM task_revisions), (SELECT count(*) FROM run_attempts) ="
            " (SELECT count(*) FROM runs), (SELECT count(*) FROM run_events) ="
            " 2 * (SELECT count(*) FROM runs), (SELECT count(*) FROM action_receipts r"
            " JOIN executions e USING (action) WHERE e.started_at_ms IS NULL) = 0"
        )
        assert tuple(database.connection.execute(sql).fetchone()) == (1, 1, 1, 1)


def fact_of(record: Record, tx: Tx) -> AuthorizationFact | None:
    act = resolution.act_of(record.resolution)
    return facts.proven(tx, record.key, FactKind.RESOLUTION, act)


def started(record: Record | None) -> bool:
    progress = None if record is None else record.progress
    return progress is not None and progress.execution.started_at_ms is not None


def flat(answer: object) -> list[object]:
    """Return the decisions of an answer, one after the other."""
    if type(answer) is tuple:
        return [each for part in answer for each in flat(part)]
    return [answer]


def kinds(answer: object) -> list[type]:
    return [type(each) for each in flat(answer)]


def told_again(expected: object, answer: object) -> bool:
    """Tell whether an answer that was lost once says what happened.

    A step that blocked an action says so once; asked again, it finds it over.
    """
    if isinstance(expected, Changed) and isinstance(answer, Changed | Replayed):
        return bool(expected.after == answer.after)
    if isinstance(expected, Changed) and isinstance(expected.after, Record):
        progress = expected.after.progress
        return progress is not None and progress.execution.status in TERMINAL
    return type(answer) is type(expected) and answer == expected
