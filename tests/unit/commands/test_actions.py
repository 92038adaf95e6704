"""The `action` commands where they meet the policy of the moment."""

import json
from typing import NoReturn

import pytest

from qinglong_edge.actions.manifest import Manifest
from qinglong_edge.actions.registry import Registry
from qinglong_edge.actions.shell_exec import ShellExec
from qinglong_edge.commands import actions
from qinglong_edge.commands.engine import Caller, Engine
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.errors import RefusedError, UnavailableError
from qinglong_edge.domain.policy import BindRole, Role, Subject, SubjectType
from qinglong_edge.executor.logs import ActionLogs
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import BOT, EDGE, HOUR_MS, PROJECT, propose_command
from tests.support.clock import FakeClocks
from tests.support.store import add_agent, add_user, log_in, make_engine, open_store

WORKER = Subject(SubjectType.WORKER, "press")
PLAN = {"schema_version": 1, "action_type": "shell.exec", "params": {"argv": ["/bin/true"]}}
PROPOSAL: JsonObject = {
    "plan": json.dumps(PLAN),
    "approval_request_id": "apr-1",
    "risk": None,
    "repeats": None,
    "expires_in_ms": HOUR_MS,
}
SPEND: JsonObject = {"id": "apr-1", "consumption_id": "con-1", "dispatch_id": "dsp-1"}
APPROVAL: JsonObject = {**SPEND, "action_digest": None, "decision_id": "dec-1", "hold": True}


@pytest.fixture
def database() -> Database:
    return open_store(":memory:", FakeClocks())


@pytest.fixture
def engine(database: Database) -> Engine:
    """Return an engine that carries `shell.exec`; its only user is ana (owner)."""
    clocks = FakeClocks()
    carried = ShellExec(ActionLogs("/nonexistent"), clocks)
    registry = Registry(Manifest(("shell.exec",), {}), [carried])
    engine = make_engine(database, clocks, registry=registry)
    add_user(engine, "ana", Role.OWNER)
    return engine


@pytest.fixture
def ana(engine: Engine) -> Caller:
    return log_in(engine, "ana")


def bind(engine: Engine, subject: Subject, role: Role | None) -> None:
    event = BindRole(PROJECT, subject, None, role, f"{subject}-{role}", EDGE)
    assert isinstance(engine.policy.bind(event), Changed)


def stored(database: Database) -> list[tuple[object, ...]]:
    rows = database.connection.execute("SELECT approval_request_id, state, version FROM actions")
    return [tuple(row) for row in rows]


class Unreadable:
    """Answer like a policy whose storage is gone."""

    def resolve(self, _project_id: str, _subject: Subject) -> NoReturn:
        raise UnavailableError("storage_error", "no")

    def bind(self, _event: BindRole) -> NoReturn:
        raise UnavailableError("storage_error", "no")


@pytest.mark.scenario(36)
def test_nothing_is_proposed_under_a_policy_that_cannot_be_read(
    engine: Engine, database: Database
) -> None:
    bot = add_agent(engine, "bot", Role.OPERATOR)
    with pytest.raises(UnavailableError) as caught:
        actions.propose(engine._replace(policy=Unreadable()), bot, PROPOSAL)
    assert caught.value.code == "storage_error"
    assert stored(database) == []
    assert actions.propose(engine, bot, PROPOSAL).body["state"] == "pending"


@pytest.mark.scenario(65)
@pytest.mark.parametrize("spent", [False, True])
def test_nothing_is_dispatched_for_a_requester_who_lost_its_role(
    engine: Engine, database: Database, ana: Caller, *, spent: bool
) -> None:
    """Not even the exact repeat of a dispatch that was made is answered then."""
    actions.propose(engine, add_agent(engine, "bot", Role.OPERATOR), PROPOSAL)
    actions.approve(engine, ana, APPROVAL)
    if spent:
        assert actions.dispatch(engine, ana, SPEND).body["state"] == "consumed"
        assert actions.dispatch(engine, ana, SPEND).body["replayed"] is True
    before = stored(database)
    bind(engine, BOT, None)
    with pytest.raises(RefusedError) as caught:
        actions.dispatch(engine, ana, SPEND)
    assert caught.value.code == "requester_not_allowed"
    assert caught.value.details == {"reason": "subject_unbound"}
    assert stored(database) == before == [("apr-1", "consumed" if spent else "approved", 2 + spent)]


@pytest.mark.scenario(66)
def test_a_requester_who_need_not_ask_is_dispatched_for_as_well(
    engine: Engine, ana: Caller
) -> None:
    """No command lets a worker propose; a request that is there asks for no more than `deny`."""
    bind(engine, WORKER, Role.OPERATOR)
    asked = propose_command(requested_by=WORKER)
    assert isinstance(engine.approvals.propose(asked), Changed)
    answer = actions.approve(engine, ana, {**APPROVAL, "hold": False})
    assert (answer.body["state"], answer.body["dispatch_id"]) == ("consumed", "dsp-1")
