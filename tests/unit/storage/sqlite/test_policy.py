import sqlite3
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import DamagedError, QinglongError, UnavailableError, UsageError
from qinglong_edge.domain.limits import VERSION_MAX
from qinglong_edge.domain.policy import (
    BindingState,
    PolicyRefusal,
    ProjectStatus,
    Role,
    RoleBinding,
    Subject,
    SubjectType,
)
from qinglong_edge.ports.probe import CrashPoint, Moment, Step
from qinglong_edge.storage.sqlite.policy import SqlitePolicy
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, PROJECT
from tests.support.clock import WALL_MS, FakeClocks
from tests.support.store import open_store
from tests.unit.storage.sqlite.subjects import BIND, histories

OWNER, ADMIN, OPERATOR, VIEWER = Role


@pytest.mark.scenario(1)
def test_a_subject_without_a_history_stands_in_the_project_with_nothing(
    policy: SqlitePolicy,
) -> None:
    project, binding = policy.resolve(PROJECT, BOB)
    assert project is not None
    assert (project.project_id, project.status, project.version) == (
        PROJECT,
        ProjectStatus.ACTIVE,
        1,
    )
    assert binding is None
    assert policy.resolve("another", BOB) == (None, None)


@pytest.mark.scenario(6)
def test_a_first_binding_is_stored_and_its_repeat_replays(
    policy: SqlitePolicy, database: Database
) -> None:
    stored = RoleBinding(PROJECT, BOB, 1, BindingState.ACTIVE, VIEWER, "bind-1", ANA, WALL_MS)
    assert policy.bind(BIND) == Changed(stored)
    commits = database.commits
    assert policy.bind(BIND) == Replayed(stored)
    assert policy.bind(BIND._replace(expected_version=None)) == Replayed(stored)
    assert database.commits == commits
    assert policy.resolve(PROJECT, BOB)[1] == stored


@pytest.mark.adr("0002", "6")
def test_a_replay_returns_the_stored_time() -> None:
    clocks = FakeClocks()
    policy = SqlitePolicy(open_store(":memory:", clocks))
    first = policy.bind(BIND)
    clocks.advance(60_000)
    again = policy.bind(BIND)
    assert isinstance(first, Changed)
    assert again == Replayed(first.after)


@pytest.mark.scenario(7)
@pytest.mark.parametrize(
    "change",
    [
        {"role": OPERATOR},
        {"role": None},
        {"subject": ANA},
        {"changed_by": BOB},
        {"expected_version": 1},
    ],
)
def test_a_used_mutation_id_with_another_meaning_is_drift(
    policy: SqlitePolicy, database: Database, change: dict[str, Any]
) -> None:
    policy.bind(BIND)
    assert policy.bind(BIND._replace(**change)) is PolicyRefusal.MUTATION_DRIFT
    assert len(histories(database)) == 1


@pytest.mark.scenario(7)
@pytest.mark.parametrize("expected", [0, 2])
def test_another_mutation_id_with_a_stale_version_is_a_conflict(
    policy: SqlitePolicy, database: Database, expected: int
) -> None:
    policy.bind(BIND)
    late = BIND._replace(mutation_id="bind-2", expected_version=expected)
    assert policy.bind(late) is PolicyRefusal.VERSION_CONFLICT
    assert len(histories(database)) == 1


@pytest.mark.scenario(5, 8)
@pytest.mark.parametrize(
    "change",
    [
        {"expected_version": -1},
        {"expected_version": VERSION_MAX},
        {"expected_version": True},
        {"project_id": ""},
        {"project_id": "x" * 129},
        {"project_id": "a\nb"},
        {"subject": Subject(SubjectType.USER, "")},
        {"subject": Subject(SubjectType.USER, "x" * 256)},
        {"subject": Subject(SubjectType.USER, "a\x7f")},
        {"changed_by": Subject(SubjectType.USER, "")},
        {"mutation_id": ""},
        {"mutation_id": "x" * 65},
        {"mutation_id": "a b"},
        {"mutation_id": "a\n"},
    ],
)
def test_a_malformed_binding_is_refused_before_any_read(
    policy: SqlitePolicy, database: Database, change: dict[str, Any]
) -> None:
    """The version of the new row follows from the expected one here, so no pair can be off."""
    database.connection.close()
    with pytest.raises(UsageError):
        policy.bind(BIND._replace(**change))


@pytest.mark.scenario(5)
@pytest.mark.parametrize("name", ["", "x" * 256, "a\0"])
def test_a_malformed_subject_is_refused_before_any_read(
    policy: SqlitePolicy, database: Database, name: str
) -> None:
    database.connection.close()
    with pytest.raises(UsageError):
        policy.resolve(PROJECT, Subject(SubjectType.USER, name))


@pytest.mark.scenario(9)
def test_the_newest_binding_counts_and_the_history_stays(
    policy: SqlitePolicy, database: Database
) -> None:
    for version, role in enumerate((VIEWER, OPERATOR, None), 1):
        event = BIND._replace(
            role=role, expected_version=version - 1, mutation_id=f"bind-{version}"
        )
        assert isinstance(policy.bind(event), Changed)
        binding = policy.resolve(PROJECT, BOB)[1]
        assert binding is not None
        assert (binding.version, binding.role) == (version, role)
    assert histories(database) == [
        ("user:bob", 1, "active", "viewer"),
        ("user:bob", 2, "active", "operator"),
        ("user:bob", 3, "revoked", None),
    ]


def test_a_history_never_changes(policy: SqlitePolicy, database: Database) -> None:
    policy.bind(BIND)
    for sql in ("UPDATE role_bindings SET role = 'owner'", "DELETE FROM role_bindings"):
        with pytest.raises(sqlite3.IntegrityError):
            database.connection.execute(sql)


@pytest.mark.scenario(10)
def test_of_two_connections_one_writes_the_first_row(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    databases = [open_store(path, FakeClocks()) for _ in range(2)]
    ready, answers = Barrier(2), dict[int, object]()

    def race(number: int) -> None:
        event = BIND._replace(mutation_id=f"bind-{number}")
        ready.wait(10)
        answers[number] = SqlitePolicy(databases[number]).bind(event)

    threads = [Thread(target=race, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    kinds = sorted(str(type(answer).__name__) for answer in answers.values())
    assert kinds == ["Changed", "PolicyRefusal"]
    assert PolicyRefusal.VERSION_CONFLICT in answers.values()
    assert (
        histories(databases[0]) == histories(databases[1]) == [("user:bob", 1, "active", "viewer")]
    )
    for database in databases:
        database.close()


@pytest.mark.scenario(10)
def test_another_connection_sees_the_row_and_replays_it(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    one, two = (SqlitePolicy(open_store(path, FakeClocks())) for _ in range(2))
    assert isinstance(one.bind(BIND), Changed)
    assert isinstance(two.bind(BIND), Replayed)
    late = BIND._replace(mutation_id="bind-2")
    assert two.bind(late) is PolicyRefusal.VERSION_CONFLICT


@pytest.mark.scenario(11)
def test_an_unknown_project_is_refused_and_an_archived_one_is_not(
    policy: SqlitePolicy, database: Database
) -> None:
    elsewhere = BIND._replace(project_id="another")
    assert policy.bind(elsewhere) is PolicyRefusal.PROJECT_NOT_FOUND
    database.connection.execute("UPDATE projects SET status = 'archived', version = 2")
    assert isinstance(policy.bind(BIND), Changed)
    project = policy.resolve(PROJECT, BOB)[0]
    assert project is not None
    assert (project.status, project.version) == (ProjectStatus.ARCHIVED, 2)


def damage(database: Database, sql: str) -> None:
    """Write behind the back of every check, as a person with a hex editor would."""
    database.connection.execute("DROP TRIGGER role_bindings_are_immutable")
    database.connection.execute("PRAGMA ignore_check_constraints = ON")
    database.connection.execute(sql)
    database.connection.execute("PRAGMA ignore_check_constraints = OFF")


@pytest.mark.scenario(22)
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE role_bindings SET role = NULL",
        "UPDATE role_bindings SET state = 'revoked'",
        "UPDATE role_bindings SET state = 'asleep'",
        "UPDATE role_bindings SET role = 'root'",
        "UPDATE role_bindings SET changed_by = 'nobody:x'",
        "UPDATE projects SET status = 'gone'",
    ],
)
def test_what_cannot_be_believed_is_damage_and_never_a_role(
    policy: SqlitePolicy, database: Database, sql: str
) -> None:
    policy.bind(BIND)
    damage(database, sql)
    with pytest.raises(DamagedError) as caught:
        policy.resolve(PROJECT, BOB)
    assert caught.value.code == "policy_damaged"
    if "role_bindings" in sql:
        with pytest.raises(DamagedError):
            policy.bind(BIND)


@pytest.mark.scenario(23)
def test_a_store_that_fails_answers_nothing(policy: SqlitePolicy, database: Database) -> None:
    database.connection.execute("DROP TABLE role_bindings")
    with pytest.raises(DamagedError):
        policy.resolve(PROJECT, BOB)
    with pytest.raises(DamagedError):
        policy.bind(BIND)


@pytest.mark.scenario(23)
def test_a_busy_store_is_unavailable(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    holder, other = (open_store(path, FakeClocks()) for _ in range(2))
    other.connection.execute("PRAGMA busy_timeout = 1")
    holder.connection.execute("BEGIN EXCLUSIVE")
    policy = SqlitePolicy(other)
    with pytest.raises(UnavailableError) as caught:
        policy.bind(BIND)
    assert caught.value.code == "store_busy"
    with pytest.raises(UnavailableError) as caught:
        policy.resolve(PROJECT, BOB)
    assert caught.value.code == "store_busy"


def test_a_binding_is_one_step_with_its_crash_points() -> None:
    passed = list[CrashPoint]()
    policy = SqlitePolicy(open_store(":memory:", FakeClocks(), probe=passed.append))
    policy.bind(BIND)
    policy.bind(BIND)
    assert passed == [
        CrashPoint(Moment.BEFORE, Step.BIND_ROLE),
        CrashPoint(Moment.AFTER, Step.BIND_ROLE),
    ]


def test_a_death_before_the_commit_leaves_nothing(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def die(point: CrashPoint, /) -> None:
        raise Killed

    path = str(tmp_path / "state.db")
    with pytest.raises(Killed):
        SqlitePolicy(open_store(path, FakeClocks(), probe=die)).bind(BIND)
    assert histories(open_store(path, FakeClocks())) == []


def test_errors_carry_no_name(policy: SqlitePolicy, database: Database) -> None:
    policy.bind(BIND)
    damage(database, "UPDATE role_bindings SET state = 'asleep'")
    with pytest.raises(QinglongError) as caught:
        policy.resolve(PROJECT, BOB)
    assert "bob" not in caught.value.message + str(caught.value.details)
