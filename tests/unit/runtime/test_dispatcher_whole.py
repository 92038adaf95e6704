"""Actions on this database in a page: barrier, effect and verdict in one commit (W7)."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_edge.actions.database import ReceiptEvidence
from qinglong_edge.actions.run_create import RunCreate
from qinglong_edge.actions.task_publish import TaskPublish
from qinglong_edge.domain.action import TASK_PUBLISH, Plan
from qinglong_edge.domain.effect import PLAN_DISAPPEARED
from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.domain.execution import Dispatch
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import Role
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext, Inspection
from qinglong_edge.runtime.dispatcher import Dispatcher
from tests.contract.adapters import Fault, SqliteRepositories, connect, copied, dump, spoil
from tests.contract.recovery_story import consumed_effect, done_effect, publish_of, run_of
from tests.contract.story import Story
from tests.support.builders import BOT
from tests.support.clock import FakeClocks
from tests.support.entropy import CounterEntropy
from tests.unit.runtime.carrying import DONE, Carried, Handler, Office, desk_of, ready
from tests.unit.runtime.looking import lookout
from tests.unit.runtime.test_dispatcher import consumed

LEFT = ("task_revisions", "runs", "run_attempts", "run_events", "action_receipts")


class Publish(TaskPublish):
    """Publish, and remember what was executed outside the barrier's commit."""

    def __init__(self, story: Story) -> None:
        super().__init__(story.ports.effects)
        self.executed: list[str] = []

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        self.executed.append(context.idempotency_key)
        return super().execute(context)


class Create(RunCreate):
    """Create runs; `after_look` happens between a look and its barrier."""

    def __init__(self, story: Story, after_look: Callable[[], None] = lambda: None) -> None:
        draws = CounterEntropy()
        super().__init__(story.ports.tasks, story.ports.effects, lambda: f"drawn-{draws(4).hex()}")
        self.executed: list[str] = []
        self._after_look = after_look

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:
        seen = super().inspect(dispatch, plan)
        self._after_look()
        return seen

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        self.executed.append(context.idempotency_key)
        return super().execute(context)


def working(story: Story, *handlers: Handler | Publish | Create, whole: bool = True) -> Office:
    desk = desk_of(story)
    carried = Carried(*handlers)
    return Office(story, Dispatcher(desk, story.ports.approvals, carried, whole=whole), desk)


def publishing(story: Story, *numbers: int) -> Publish:
    """Approve the publication of tasks; return who would publish them."""
    for n in numbers:
        consumed_effect(story, n, publish_of(n))
    return Publish(story)


def left(story: Story) -> dict[str, int]:
    """Count the rows that effects leave."""
    stored = story.repositories.snapshot()
    assert isinstance(stored, dict)
    return {table: len(stored[table]) for table in LEFT if stored[table]}


@pytest.mark.adr("0009", "7")
@pytest.mark.adr("0033", "4.3")
@pytest.mark.scenario(224)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_n_actions_on_this_database_cost_n_commits(stored: Story, n: int) -> None:
    publish = publishing(stored, *range(1, n + 1))
    first = stored.repositories.commits()
    assert working(stored, publish).counts() == {
        "scanned": n, "claimed": n, "started": n, "succeeded": n,
    }  # fmt: skip
    assert stored.repositories.commits() - first == n
    assert publish.executed == []
    assert left(stored) == {"task_revisions": n, "action_receipts": n}
    for each in range(1, n + 1):
        assert stored.control(each).status is ControlStatus.RESOLVED


@pytest.mark.adr("0005", "1")
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_split_road_costs_an_effect_and_a_verdict_more(stored: Story, n: int) -> None:
    """N + 1 as every page, and a commit for each effect."""
    publish = publishing(stored, *range(1, n + 1))
    first = stored.repositories.commits()
    assert working(stored, publish, whole=False).counts() == {
        "scanned": n, "claimed": n, "started": n, "succeeded": n,
    }  # fmt: skip
    assert stored.repositories.commits() - first == n + 1 + n
    assert publish.executed == [f"dsp-{each}" for each in range(1, n + 1)]
    assert left(stored) == {"task_revisions": n, "action_receipts": n}


def test_both_roads_leave_the_same_rows(
    stored: Story, sqlite: SqliteRepositories, template: str, tmp_path: Path
) -> None:
    (tmp_path / "twin").mkdir()
    other = SqliteRepositories(copied(template, tmp_path / "twin"), FakeClocks())
    with closing(other):
        twin = Story(other)
        for story, whole in ((stored, True), (twin, False)):
            counts = working(story, publishing(story, 1, 2), whole=whole).counts()
            assert counts["succeeded"] == 2
        one, two = dump(sqlite.path), dump(other.path)
    assert one["task_revisions"] == two["task_revisions"]
    assert one["action_receipts"] == two["action_receipts"]


@pytest.mark.adr("0005", "1")
@pytest.mark.parametrize(
    ("kinds", "commits"),
    [
        ("shell publish shell", 4),  # claim+start, result+whole, start, result
        ("publish shell publish", 3),  # claim+whole, start, result+whole
        ("shell publish publish", 3),  # claim+start, result+whole, whole
        ("publish publish shell", 4),  # claim+whole, whole, start, result
    ],
)
def test_pages_of_both_kinds_merge_what_follows_each_other(
    stored: Story, kinds: str, commits: int
) -> None:
    publish, shell = Publish(stored), Handler()
    for n, kind in enumerate(kinds.split(), 1):
        if kind == "shell":
            consumed(stored, n)
        else:
            consumed_effect(stored, n, publish_of(n))
    first = stored.repositories.commits()
    counts = working(stored, publish, shell).counts()
    assert counts == {"scanned": 3, "claimed": 3, "started": 3, "succeeded": 3}
    assert stored.repositories.commits() - first == commits
    assert len(shell.executed) == kinds.count("shell")
    assert left(stored)["task_revisions"] == kinds.count("publish")


@pytest.mark.scenario(187)
def test_a_page_publishes_a_task_and_runs_it(stored: Story) -> None:
    publish, create = publishing(stored, 1), Create(stored)
    consumed_effect(stored, 2, run_of(2, of=1))
    first = stored.repositories.commits()
    assert working(stored, publish, create).counts()["succeeded"] == 2
    assert stored.repositories.commits() - first == 2
    assert left(stored) == {
        "task_revisions": 1, "runs": 1, "run_attempts": 1, "run_events": 2, "action_receipts": 2,
    }  # fmt: skip
    assert (publish.executed, create.executed) == ([], [])


def staged(sqlite: SqliteRepositories, fault: Fault) -> Handler:
    """Return a shell whose result is stored by a commit that goes wrong."""

    def works(_context: HandlerContext) -> HandlerAnswer:
        sqlite.fail_next_commit(fault)
        return DONE

    return Handler(execute=works)


@pytest.mark.adr("0004", "5")
@pytest.mark.adr("0033", "6.3")
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.NOT_DONE, Fault.FULL])
def test_a_merged_commit_that_goes_wrong_has_its_effect_once(
    stored: Story, sqlite: SqliteRepositories, fault: Fault
) -> None:
    """The result of the shell and the whole publication: repeated together, then each alone."""
    consumed(stored, 1)
    publish = publishing(stored, 2)
    shell = staged(sqlite, fault)
    counts = working(stored, publish, shell).counts()
    assert counts == {"scanned": 2, "claimed": 2, "started": 2, "succeeded": 2}
    assert (shell.executed, publish.executed) == (["dsp-1"], [])
    assert left(stored) == {"task_revisions": 1, "action_receipts": 1}
    assert working(stored, publish, shell).counts() == {}


@pytest.mark.adr("0004", "5")
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.NOT_DONE])
def test_a_claim_whose_whole_action_was_hidden_is_a_replay(
    stored: Story, sqlite: SqliteRepositories, fault: Fault
) -> None:
    publish = publishing(stored, 1, 2)
    sqlite.fail_next_commit(fault)
    counts = working(stored, publish).counts()
    assert counts == {"scanned": 2, "claimed": 2, "started": 2, "succeeded": 2}
    assert left(stored) == {"task_revisions": 2, "action_receipts": 2}


class Failing(Publish):
    """Let the commit after the look at one action go wrong."""

    def __init__(self, story: Story, sqlite: SqliteRepositories, fault: Fault) -> None:
        super().__init__(story)
        self._sqlite, self._fault = sqlite, fault

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:
        if dispatch.dispatch_id == "dsp-2":
            self._sqlite.fail_next_commit(self._fault)
        return super().inspect(dispatch, plan)


@pytest.mark.adr("0005", "7")
@pytest.mark.scenario(120)
@pytest.mark.parametrize("fault", [Fault.FULL, Fault.NEVER_DONE])
def test_a_whole_action_that_cannot_be_told_is_unavailable_and_had_no_effect(
    stored: Story, sqlite: SqliteRepositories, fault: Fault
) -> None:
    publishing(stored, 1, 2)
    failing = Failing(stored, sqlite, fault)
    counts = working(stored, failing).counts()
    assert counts == {
        "scanned": 2, "claimed": 2, "started": 1, "succeeded": 1, "unavailable": 1,
    }  # fmt: skip
    assert stored.status(2) is ExecutionStatus.LEASED
    assert left(stored) == {"task_revisions": 1, "action_receipts": 1}
    assert failing.executed == []
    sqlite.database.connection.fault = None  # type: ignore[attr-defined]
    stored.clocks.advance(600_000)
    assert working(stored, Publish(stored)).counts()["succeeded"] == 1
    assert (stored.execution(2).attempt_count, left(stored)["task_revisions"]) == (2, 2)


@pytest.mark.adr("0004", "9")
@pytest.mark.scenario(189)
@pytest.mark.parametrize("table", ["runs", "run_attempts", "run_events", "action_receipts"])
def test_a_part_of_an_effect_that_fails_takes_its_barrier_back(
    stored: Story, sqlite: SqliteRepositories, table: str
) -> None:
    """Nothing is left of it, and nobody needs to look for it."""
    done_effect(stored, 1, publish_of(1))
    consumed_effect(stored, 2, run_of(2, of=1))
    before = left(stored)
    with closing(connect(sqlite.path)) as other:
        other.execute(
            f"CREATE TRIGGER stop BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    with pytest.raises(InvariantBroken):
        working(stored, Create(stored)).counts()
    assert left(stored) == before
    assert stored.status(2) is ExecutionStatus.PENDING
    assert stored.waits_for_recovery() == []


@pytest.mark.scenario(196)
@pytest.mark.parametrize("whole", [True, False])
def test_an_effect_whose_plan_disappeared_behind_the_look_has_failed(
    stored: Story, sqlite: SqliteRepositories, whole: bool
) -> None:
    done_effect(stored, 1, publish_of(1))
    consumed_effect(stored, 2, run_of(2, of=1))

    def forget() -> None:
        spoil(sqlite.path, "DELETE FROM task_revisions")

    counts = working(stored, Create(stored, forget), whole=whole).counts()
    assert counts == {"scanned": 1, "claimed": 1, "started": 1, "failed": 1}
    ended = stored.execution(2)
    assert (ended.status, ended.last_result_code) == (ExecutionStatus.FAILED, PLAN_DISAPPEARED)
    assert left(stored) == {"action_receipts": 1}
    assert stored.waits_for_recovery() == []


def test_a_task_that_lost_a_revision_stops_nobody_else(
    stored: Story, sqlite: SqliteRepositories
) -> None:
    """W9: its next number was proven before, so nothing is published; the page goes on."""
    done_effect(stored, 1, publish_of(1))
    spoil(sqlite.path, "DELETE FROM task_revisions")
    consumed_effect(stored, 2, publish_of(1))
    consumed_effect(stored, 3, publish_of(3))
    consumed(stored, 4)
    counts = working(stored, Publish(stored), Handler()).counts()
    assert counts == {"scanned": 3, "claimed": 3, "deferred": 1, "started": 2, "succeeded": 2}
    assert stored.status(2) is ExecutionStatus.LEASED
    assert left(stored) == {"task_revisions": 1, "action_receipts": 2}


@pytest.mark.scenario(87)
def test_a_refused_barrier_has_no_effect(stored: Story) -> None:
    publish = publishing(stored, 1, 2)
    stored.revoke(BOT, Role.VIEWER)
    assert working(stored, publish).counts() == {"scanned": 2, "claimed": 2, "blocked": 2}
    assert left(stored) == {}


def test_a_look_that_lets_go_has_no_effect(stored: Story) -> None:
    """The run's task was never published: the attempt is spent, and it is looked at again."""
    consumed_effect(stored, 2, run_of(2, of=1))
    assert working(stored, Create(stored)).counts() == {"scanned": 1, "claimed": 1, "retrying": 1}
    assert stored.execution(2).last_result_code == "approved_run_plan_missing"
    assert left(stored) == {}


def test_a_stop_leaves_later_effects_undone(stored: Story) -> None:
    publish = publishing(stored, 2, 3)
    consumed(stored, 1)
    shell = Handler(inspect=ready)
    counts = working(stored, shell, publish).counts(may_begin=lambda: not shell.executed)
    assert (counts["succeeded"], counts["put_back"]) == (1, 2)
    assert left(stored) == {}
    assert stored.due() == ["dsp-2", "dsp-3"]


class Dying(Publish):
    """Publish in a commit of its own, and then `end` before anybody was told."""

    def __init__(self, story: Story, end: Callable[[], None]) -> None:
        super().__init__(story)
        self._end = end

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        answer = super().execute(context)
        self._end()
        return answer


def settled_by_receipt(story: Story) -> None:
    """Look at what is unknown, once its lease is over."""
    story.clocks.advance(600_000)
    looking = lookout(story, ReceiptEvidence(TASK_PUBLISH, story.ports.effects))
    assert looking.counts() == {"scanned": 1, "claimed": 1, "verified_succeeded": 1}
    assert story.status(1) is ExecutionStatus.SUCCEEDED
    assert left(story) == {"task_revisions": 1, "action_receipts": 1}


@pytest.mark.adr("0033", "2.2")
@pytest.mark.adr("0033", "4.3")
@pytest.mark.scenario(116, 200)
def test_a_handler_that_dies_behind_its_effect_is_settled_by_the_receipt(stored: Story) -> None:
    """W1: an exception is no answer, and the receipt tells what it hid."""

    def end() -> None:
        raise MemoryError

    publishing(stored, 1)
    dying = Dying(stored, end)
    assert working(stored, dying, whole=False).counts() == {
        "scanned": 1, "claimed": 1, "started": 1, "recovery_required": 1,
    }  # fmt: skip
    settled_by_receipt(stored)
    assert working(stored, dying, whole=False).counts() == {}
    assert dying.executed == ["dsp-1"]


@pytest.mark.adr("0033", "2.2")
@pytest.mark.adr("0033", "6.3")
@pytest.mark.scenario(118, 200)
def test_a_verdict_that_is_not_stored_is_found_by_the_receipt(
    stored: Story, sqlite: SqliteRepositories
) -> None:
    publishing(stored, 1)
    dying = Dying(stored, lambda: sqlite.fail_next_commit(Fault.NEVER_DONE))
    assert working(stored, dying, whole=False).counts() == {
        "scanned": 1, "claimed": 1, "started": 1, "unavailable": 1, "recovery_required": 1,
    }  # fmt: skip
    sqlite.database.connection.fault = None  # type: ignore[attr-defined]
    settled_by_receipt(stored)
    assert dying.executed == ["dsp-1"]
