"""Receipts, runs and revisions that somebody changed behind the guards: they prove nothing."""

import json
import sqlite3
from contextlib import closing
from threading import Thread

import pytest

from qinglong_edge.domain.canonical import canonical_bytes
from qinglong_edge.domain.effect import Effect
from qinglong_edge.domain.errors import DamagedError, InvariantBroken
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.receipt import receipt_digest
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.ports.handlers import HandlerAnswer
from tests.contract.adapters import SqliteRepositories, dump, spoil
from tests.contract.recovery_story import (
    claimed_effect,
    done_effect,
    judged,
    left,
    perform_of,
    publish_of,
    run_of,
    start_effect,
    started_effect,
    whole_of,
)
from tests.contract.story import Story, changed, complete_of
from tests.support.clock import WALL_MS

PUBLISH, RUN = publish_of(2), run_of(2, of=1)
EFFECTS = pytest.mark.parametrize("effect", [PUBLISH, RUN], ids=["publish", "run"])


@pytest.fixture
def story(sqlite: SqliteRepositories) -> Story:
    """Return a store in which action 1 published the task that runs are made of."""
    told = Story(sqlite)
    done_effect(told, 1, publish_of(1))
    return told


def done(story: Story, effect: Effect) -> None:
    """Have the effect of action 2, whose verdict is still to come."""
    started_effect(story, 2, effect)
    answer = story.ports.effects.perform(perform_of(2, effect))
    assert isinstance(answer, HandlerAnswer)
    assert answer.outcome is Outcome.SUCCEEDED


def forge(sqlite: SqliteRepositories, member: str, value: object) -> None:
    """Change one member of a receipt, and its digest with it."""
    with closing(sqlite3.connect(sqlite.path)) as connection:
        sql = "SELECT body FROM action_receipts WHERE action = 2"
        (body,) = connection.execute(sql).fetchone()
    said = json.loads(body)
    assert said[member] is not value
    forged = canonical_bytes({**said, member: value})  # type: ignore[dict-item]
    spoil(
        sqlite.path,
        f"UPDATE action_receipts SET body = X'{forged.hex()}',"
        f" evidence_digest = X'{receipt_digest(forged)}' WHERE action = 2",
    )


@pytest.mark.adr("0033", "4.3")
@pytest.mark.scenario(187)
@pytest.mark.parametrize("whole", [False, True], ids=["split", "whole"])
def test_a_run_is_admitted_with_its_two_events(
    story: Story, sqlite: SqliteRepositories, *, whole: bool
) -> None:
    story.clocks.advance(7)
    if whole:
        done_effect(story, 2, RUN)
    else:
        done(story, RUN)
    held, at_ms = dump(sqlite.path), WALL_MS + 7
    actor = ("system", "approved-action-dispatcher")
    created = '{"status":"created","version":1,"execution_owner":"runtime"}'
    queued = '{"from_status":"created","to_status":"queued","version":2}'
    assert held["run_events"] == [
        (1, 1, "ev-2-1", "run.created", "primary-run-created:run-2", *actor, created, at_ms),
        (1, 2, "ev-2-2", "run.queued", "primary-run-queued:run-2", *actor, queued, at_ms),
    ]
    counts = {name: len(held[name]) for name in ("runs", "run_attempts", "action_receipts")}
    assert counts == {"runs": 1, "run_attempts": 1, "action_receipts": 2}
    assert story.ports.overview.problems() == []


FORGED: list[tuple[str, object]] = [
    ("schemaVersion", 2),
    ("dispatchId", "dsp-1"),
    ("approvalRequestId", "apr-1"),
    ("projectId", "prj-other"),
    ("actionType", "shell.exec"),
    ("actionDigest", "f" * 64),
    ("executionAttempt", 2),
    ("executionVersion", 3),
    ("startedAtMs", WALL_MS - 1),
    ("idempotencyKey", "dsp-1"),
    ("outcome", "failed"),
    ("resultCode", "other"),
    ("resourceType", "other"),
    ("resourceId", "other"),
    ("finishedAtMs", WALL_MS - 1),
    ("createdAtMs", WALL_MS + 1),
    ("schemaVersion", True),
]


@pytest.mark.adr("0033", "3.1")
@pytest.mark.scenario(193, 194)
@pytest.mark.parametrize(("member", "value"), FORGED)
@EFFECTS
def test_a_receipt_that_binds_something_else_is_a_conflict(
    story: Story, sqlite: SqliteRepositories, effect: Effect, member: str, value: object
) -> None:
    done(story, effect)
    forge(sqlite, member, value)
    before = dump(sqlite.path)
    assert judged(story, 2).finding is Finding.CONFLICT
    answer = story.ports.effects.perform(perform_of(2, effect))
    assert isinstance(answer, HandlerAnswer)
    assert answer.outcome is Outcome.FAILED
    assert answer.result_code.endswith("_receipt_conflict")
    assert {"row": 2, "problem": "receipt_damaged"} in story.ports.overview.problems()
    assert dump(sqlite.path) == before


UNBOUND = [
    "UPDATE action_receipts SET evidence_digest = zeroblob(32) WHERE action = 2",
    "UPDATE action_receipts SET body = X'7B7D' WHERE action = 2",
    "UPDATE action_receipts SET body = CAST(body || ' ' AS BLOB) WHERE action = 2",
    "DELETE FROM runs",
    "DELETE FROM run_attempts",
    "UPDATE runs SET run_id = 'run-x'",
    "UPDATE runs SET idempotency_key = 'dsp-9'",
    "UPDATE runs SET request_id = 'apr-9'",
    "UPDATE runs SET trigger_type = 'manual'",
    "UPDATE runs SET execution_origin = 'user'",
    "UPDATE runs SET execution_owner = 'client'",
    "UPDATE runs SET triggered_by = 'somebody'",
    "DELETE FROM action_receipts WHERE action = 2",
]


@pytest.mark.adr("0033", "3.1")
@pytest.mark.scenario(194)
@pytest.mark.parametrize("statement", UNBOUND)
def test_a_run_and_a_receipt_that_do_not_belong_together_are_a_conflict(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    done(story, RUN)
    spoil(sqlite.path, statement)
    assert judged(story, 2).finding is Finding.CONFLICT
    assert {"row": 2, "problem": "receipt_damaged"} in story.ports.overview.problems()


@pytest.mark.scenario(194)
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM task_revisions WHERE action = 2",
        "UPDATE task_revisions SET number = 2 WHERE action = 2",
        "UPDATE task_revisions SET task_id = 'task-x' WHERE action = 2",
        "DELETE FROM action_receipts WHERE action = 2",
    ],
)
def test_a_revision_and_a_receipt_that_do_not_belong_together_are_a_conflict(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    done(story, PUBLISH)
    spoil(sqlite.path, statement)
    assert judged(story, 2).finding is Finding.CONFLICT
    found = [each for each in story.ports.overview.problems() if isinstance(each, dict)]
    assert {each["problem"] for each in found} <= {"receipt_damaged", "task_damaged"}
    assert [each["row"] for each in found] == [2]


@pytest.mark.parametrize("change", ["resource_id = 'run-x'", "resource_type = 'task_revision'"])
def test_verify_sees_a_receipt_whose_columns_name_something_else(
    story: Story, sqlite: SqliteRepositories, change: str
) -> None:
    done(story, RUN)
    spoil(sqlite.path, f"UPDATE action_receipts SET {change} WHERE action = 2")
    assert story.ports.overview.problems() == [{"row": 2, "problem": "receipt_damaged"}]


def test_verify_sees_a_receipt_of_an_action_that_has_none(
    story: Story, sqlite: SqliteRepositories
) -> None:
    story.started(3)
    story.proposed(4)
    for action in (2, 3):  # their keys in the order of their proposals
        columns = f"{action}, resource_type, 'x{action}', body, evidence_digest"
        copy = f"INSERT INTO action_receipts SELECT {columns} FROM action_receipts WHERE action = 1"
        spoil(sqlite.path, copy)
    found = story.ports.overview.problems()
    for action in (2, 3):
        assert {"row": action, "problem": "receipt_damaged"} in found


@pytest.mark.parametrize(
    "change",
    [
        "body = CAST(replace(body, '/bin/true', '/bin/evil') AS BLOB)",
        "body = X'7B7D'",
        "digest = zeroblob(32)",
    ],
)
def test_a_revision_that_does_not_match_its_digest_is_damage(
    story: Story, sqlite: SqliteRepositories, change: str
) -> None:
    done_effect(story, 3, publish_of(3))
    started_effect(story, 2, RUN)
    spoil(sqlite.path, f"UPDATE task_revisions SET {change} WHERE task_id = 'task-1'")
    before = dump(sqlite.path)
    for call in (
        lambda: story.ports.tasks.find("task-1"),
        lambda: story.ports.tasks.find("task-1", 1),
        lambda: story.ports.effects.perform(perform_of(2, RUN)),
    ):
        with pytest.raises(DamagedError):
            call()
    page = story.ports.tasks.page(None, 9)
    assert ([each.task_id for each in page.items], page.damaged) == (["task-3"], 1)
    assert story.ports.overview.problems() == [{"row": 1, "problem": "task_damaged"}]
    assert dump(sqlite.path) == before


def test_verify_sees_a_revision_under_another_name(
    story: Story, sqlite: SqliteRepositories
) -> None:
    spoil(sqlite.path, "UPDATE task_revisions SET name = 'Other'")
    assert story.ports.overview.problems() == [{"row": 1, "problem": "task_damaged"}]


def foreign_run(sqlite: SqliteRepositories) -> None:
    """Let somebody else's run stand under the key of dispatch 2."""
    spoil(
        sqlite.path,
        "INSERT INTO runs VALUES (7, 'run-7', 1, 'task-1', 'r1', 'Task 1', 0, 'manual', 'user',"
        " 'client', 'somebody', 'req-7', 'dsp-2', 'queued', 2, 2, 1, 1)",
    )


@pytest.mark.scenario(195)
@pytest.mark.parametrize("whole", [False, True], ids=["split", "whole"])
def test_a_foreign_run_under_the_same_key_stays_and_is_a_conflict(
    story: Story, sqlite: SqliteRepositories, *, whole: bool
) -> None:
    claimed_effect(story, 2, RUN)
    foreign_run(sqlite)
    if whole:
        changed(story.ports.dispatches.start(whole_of(2, RUN)))
        assert story.status(2) is ExecutionStatus.FAILED
        assert story.execution(2).last_result_code == "approved_run_receipt_conflict"
    else:
        changed(story.ports.dispatches.start(start_effect(2, RUN)))
        answer = story.ports.effects.perform(perform_of(2, RUN))
        assert answer == HandlerAnswer(Outcome.FAILED, "approved_run_receipt_conflict")
    assert judged(story, 2).finding is Finding.CONFLICT
    held = dump(sqlite.path)
    assert [row[1] for row in held["runs"]] == ["run-7"]
    assert (len(held["run_attempts"]), len(held["action_receipts"])) == (0, 1)
    assert story.ports.overview.problems() == []


TABLES = {
    "publish": ["task_revisions", "action_receipts"],
    "run": ["runs", "run_attempts", "run_events", "action_receipts"],
}
STEPS = [(PUBLISH, table) for table in TABLES["publish"]] + [
    (RUN, table) for table in TABLES["run"]
]


@pytest.mark.scenario(189, 226)
@pytest.mark.parametrize(("effect", "table"), STEPS)
@pytest.mark.parametrize("whole", [False, True], ids=["split", "whole"])
def test_an_effect_that_breaks_off_leaves_nothing(
    story: Story, sqlite: SqliteRepositories, effect: Effect, table: str, *, whole: bool
) -> None:
    if whole:
        claimed_effect(story, 2, effect)
    else:
        started_effect(story, 2, effect)

    def have() -> object:
        if whole:
            return story.ports.dispatches.start(whole_of(2, effect))
        return story.ports.effects.perform(perform_of(2, effect))

    before = dump(sqlite.path)
    abort = f"BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'staged'); END"
    sqlite.database.connection.execute(f"CREATE TRIGGER staged {abort}")
    with pytest.raises(InvariantBroken):
        have()
    assert dump(sqlite.path) == before
    sqlite.database.connection.execute("DROP TRIGGER staged")
    have()
    assert judged(story, 2).finding is Finding.VERIFIED_SUCCEEDED


@pytest.mark.scenario(189)
def test_a_verdict_is_not_lost_with_the_effect_that_broke_off_beside_it(
    story: Story, sqlite: SqliteRepositories
) -> None:
    """Both go back together; the verdict alone is then stored as ever."""
    claimed_effect(story, 2, RUN)
    story.started(3)
    before = dump(sqlite.path)
    abort = "BEFORE INSERT ON action_receipts BEGIN SELECT RAISE(ABORT, 'staged'); END"
    sqlite.database.connection.execute(f"CREATE TRIGGER staged {abort}")
    with pytest.raises(InvariantBroken):
        story.ports.dispatches.complete(complete_of(3), whole_of(2, RUN))
    assert dump(sqlite.path) == before
    changed(story.ports.dispatches.complete(complete_of(3))[0])


@pytest.mark.scenario(198)
@EFFECTS
def test_two_that_have_one_effect_at_once_leave_one(
    story: Story, sqlite: SqliteRepositories, effect: Effect
) -> None:
    started_effect(story, 2, effect)
    sessions = [sqlite.second_session().effects for _ in range(2)]
    answers: list[object] = []

    def have(n: int) -> None:
        event = perform_of(2, effect)
        if effect == RUN:
            drawn = RUN.drawn._replace(run_id=f"run-{n}x", attempt_id=f"att-{n}x")
            event = event._replace(effect=RUN._replace(drawn=drawn))
        answers.append(sessions[n].perform(event))

    threads = [Thread(target=have, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 2
    assert answers[0] == answers[1]
    assert judged(story, 2).finding is Finding.VERIFIED_SUCCEEDED
    held = dump(sqlite.path)
    assert len(held["action_receipts"]) == 2
    assert (len(held["runs"]), len(held["task_revisions"])) == ((1, 1) if effect == RUN else (0, 2))
    assert left(story, 2).resource is not None
