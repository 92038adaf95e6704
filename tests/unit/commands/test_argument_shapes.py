"""Every command with arguments of every wrong kind: an answer or an error of ours, never a bug."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import pytest

from qinglong_edge.actions.manifest import Manifest
from qinglong_edge.actions.registry import Registry
from qinglong_edge.actions.run_create import RunCreate
from qinglong_edge.actions.shell_exec import ShellExec
from qinglong_edge.actions.task_publish import TaskPublish
from qinglong_edge.commands import cycle, status
from qinglong_edge.commands.engine import Caller, Engine
from qinglong_edge.commands.table import TABLE
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.errors import (
    EXIT_BUG,
    QinglongError,
    RefusedError,
    UsageError,
    exit_code_of,
)
from qinglong_edge.domain.identity import Assurance
from qinglong_edge.domain.policy import Role
from qinglong_edge.executor.logs import ActionLogs
from qinglong_edge.storage.sqlite.effects import SqliteEffects
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import HOUR_MS, propose_command
from tests.support.clock import FakeClocks
from tests.support.store import (
    NOBODY,
    PASSWORD,
    add_agent,
    add_user,
    log_in,
    make_engine,
    token,
)

Args = dict[str, Any]
WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 1.5, "", "\0", "\ud800", [], {}, [[]], {"a": []},
)  # fmt: skip
SHELL: Args = {"argv": ["/bin/true"], "cwd": "/", "env": {"A": "b"}, "timeout_ms": 1_000}
TASK: Args = {"schema_version": 1, "task_id": "task-1", "name": "Task 1", **SHELL}
PLANS: Mapping[str, Args] = {
    "shell.exec": SHELL,
    "run.create": {"task_id": "task-1", "task_revision": "r1"},
    "task.publish": TASK,
}
PAGE: Args = {"limit": 8, "cursor": None}
SPEND: Args = {"id": "apr-1", "consumption_id": "con-1", "dispatch_id": "dsp-1"}
DECIDED: Args = {"id": "apr-1", "decision_id": "dec-1"}


def plan(action_type: str = "shell.exec", **changes: Any) -> str:
    whole = {"schema_version": 1, "action_type": action_type, "params": PLANS[action_type]}
    return json.dumps({**whole, "files": [], **changes})


def proposal(text: str) -> Args:
    named = {"approval_request_id": "apr-9", "expires_in_ms": HOUR_MS}
    return {"plan": text, **named, "risk": None, "repeats": None}


SOUND: Mapping[str, Args] = {
    "action.propose": proposal(plan()),
    "action.list": {**PAGE, "state": None},
    "action.show": {"id": "apr-1"},
    "action.logs": {"id": "apr-1"},
    "action.approve": {**SPEND, **DECIDED, "action_digest": None, "hold": False},
    "action.reject": {**DECIDED, "reason": "too_risky"},
    "action.dispatch": SPEND,
    "action.cancel": {"id": "apr-1", "cancel_id": "can-1"},
    "agent.add": {"name": "new", "role": "viewer", "token": token("new"), "mutation_id": "mut-1"},
    "agent.list": PAGE,
    "agent.rotate": {"name": "bot", "token": token("again")},
    "agent.disable": {"name": "bot", "mutation_id": "mut-1"},
    "user.add": {"name": "new", "role": "viewer", "password": PASSWORD, "mutation_id": "mut-1"},
    "user.list": PAGE,
    "user.disable": {"name": "bob", "mutation_id": "mut-1"},
    "user.totp": {"name": "ana", "seed": token("seed")},
    "user.reset": {"name": "bob", "password": PASSWORD, "reset_id": "res-1"},
    "clock.trust": {},
    "role.bind": {"subject": "user:bob", "role": "viewer", "mutation_id": "mut-1"},
    "role.revoke": {"subject": "user:bob", "mutation_id": "mut-1"},
    "login": {
        "name": "ana", "password": PASSWORD, "totp": None, "recovery_code": None,
        "session_token": token("new"), "session_id": "ses-9",
    },
    "logout": {},
    "recovery.list": {**PAGE, "queue": "due"},
    "recovery.show": {"id": "dsp-1"},
    "recovery.resolve": {
        "id": "dsp-1", "decision": "abandon_unknown", "reason": "looked", "expected_version": 3,
        "expected_recovery_version": None, "mutation_id": "man-1", "evidence": None,
        "unprobed": True,
    },
    "handler.list": {},
    "task.list": PAGE,
    "task.show": {"id": "task-1", "revision": None},
    "status": {},
    "verify": {},
}  # fmt: skip

# What needs more than a pending request.
REFUSED: Mapping[str, str] = {
    "action.logs": "has not been dispatched",
    "action.dispatch": "has been decided already",
    "recovery.show": "no such dispatch",
    "recovery.resolve": "no such dispatch",
    "task.show": "no such task",
}


@pytest.fixture
def engine(database: Database, clocks: FakeClocks) -> Engine:
    """Return an engine that carries every type; ana owns it, bob's request is pending."""
    effects, bare = SqliteEffects(database), make_engine(database, clocks)
    carried = (
        ShellExec(ActionLogs("/nonexistent"), clocks),
        RunCreate(bare.tasks, effects, lambda: "drawn-1"),
        TaskPublish(effects),
    )
    engine = bare._replace(registry=Registry(Manifest(tuple(sorted(PLANS)), {}), carried))
    add_user(engine, "ana", Role.OWNER)
    bob = add_user(engine, "bob", Role.ADMIN)
    made = engine.approvals.propose(propose_command(requested_by=bob))
    assert isinstance(made, Changed), made
    return engine


@pytest.fixture
def proper(engine: Engine) -> Mapping[str, Caller]:
    """Return whom each command is for: an agent proposes, the owner, strongly proven, the rest."""
    bot = add_agent(engine, "bot", Role.OPERATOR)
    ana = log_in(engine, "ana", Assurance.MULTI_FACTOR)._replace(is_state_owner=True)
    return {**dict.fromkeys(TABLE, ana), "action.propose": bot}


def fault(name: str, engine: Engine, caller: Caller, args: Any) -> str | None:
    """Return what is wrong with how a command takes these arguments; None where nothing is."""
    try:
        TABLE[name].run(engine, caller, args)
    except QinglongError as error:
        return f"{args}: {error!r}" if exit_code_of(error) == EXIT_BUG else None
    except Exception as error:  # noqa: BLE001 - what the table must not raise
        return f"{args}: {error!r}"
    return None


def faults(name: str, engine: Engine, caller: Caller) -> list[str]:
    sound = SOUND[name]
    spoiled = [{**sound, field: value} for field in sound for value in WRONG]
    found = [fault(name, engine, caller, args) for args in [*spoiled, *WRONG]]
    return [each for each in found if each is not None]


def test_every_command_has_a_sound_set_of_arguments() -> None:
    assert set(SOUND) == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_sound_set_is_taken_whole(
    name: str, engine: Engine, proper: Mapping[str, Caller]
) -> None:
    with contextlib.ExitStack() as expected:
        if name in REFUSED:
            expected.enter_context(pytest.raises(RefusedError, match=REFUSED[name]))
        TABLE[name].run(engine, proper[name], SOUND[name])


@pytest.mark.parametrize("name", TABLE)
def test_a_value_of_a_wrong_kind_is_no_bug(
    name: str, engine: Engine, proper: Mapping[str, Caller]
) -> None:
    assert faults(name, engine, proper[name]) == []


@pytest.mark.parametrize("name", TABLE)
def test_nor_is_it_one_from_nobody(name: str, engine: Engine) -> None:
    assert faults(name, engine, NOBODY) == []


@pytest.mark.parametrize("name", TABLE)
def test_a_missing_argument_and_one_too_many_are_the_callers_fault(
    name: str, engine: Engine, proper: Mapping[str, Caller]
) -> None:
    sound = SOUND[name]
    shorter = [{each: sound[each] for each in sound if each != field} for field in sound]
    for args in [*shorter, {**sound, "extra": None}]:
        for caller in (proper[name], NOBODY):
            with pytest.raises(UsageError):
                TABLE[name].run(engine, caller, args)


@pytest.mark.parametrize("action_type", ["shell.exec", "task.publish"])
def test_a_sound_plan_is_proposed(
    action_type: str, engine: Engine, proper: Mapping[str, Caller]
) -> None:
    propose, text = "action.propose", plan(action_type)
    assert TABLE[propose].run(engine, proper[propose], proposal(text)).body["state"] == "pending"


@pytest.mark.parametrize("action_type", PLANS)
def test_a_plan_with_a_value_of_a_wrong_kind_is_no_bug(
    action_type: str, engine: Engine, proper: Mapping[str, Caller]
) -> None:
    bot, params = proper["action.propose"], PLANS[action_type]
    inner = [{**params, field: value} for field in params for value in WRONG]
    members = ("schema_version", "action_type", "params", "files")
    texts = [json.dumps({**json.loads(plan(action_type)), name: value})
             for name in members for value in WRONG]  # fmt: skip
    texts += [plan(action_type, params=each) for each in inner]
    found = [fault("action.propose", engine, bot, proposal(text)) for text in texts]
    assert [each for each in found if each is not None] == []


@pytest.mark.parametrize("value", [each for each in WRONG if each != {}])
def test_a_cycle_and_a_profile_take_no_other_shape(
    value: Any, engine: Engine, proper: Mapping[str, Caller]
) -> None:
    for args in (value, {"extra": value}):
        with pytest.raises(UsageError):
            cycle.idle(engine, proper["status"], args)
    for args in (value, {"name": value}):
        with pytest.raises(UsageError):
            status.show_profile(args)
