from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.commands import identities as commands
from qinglong_edge.commands.authority import authenticate, token_digest
from qinglong_edge.commands.engine import Answer, Caller, Command, Engine
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.errors import RefusedError, UsageError
from qinglong_edge.domain.identity import Identity
from qinglong_edge.domain.policy import BindRole, Role, Subject
from qinglong_edge.executor.passwords import verify
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, BOT, EDGE, PROJECT
from tests.support.clock import WALL_MS
from tests.support.store import (
    NOBODY,
    STATE_OWNER,
    add_agent,
    add_user,
    log_in,
    token,
)

USER = {"name": "cyd", "role": "viewer", "password": "long enough", "mutation_id": "m-1"}
AGENT = {"name": "bot", "role": "operator", "token": token("bot"), "mutation_id": "m-1"}
BIND = {"subject": "user:bob", "role": "operator", "mutation_id": "m-1"}
CALLS: list[tuple[Command, dict[str, Any]]] = [
    (commands.add_user, USER),
    (commands.add_agent, AGENT),
    (commands.list_users, {"limit": 20, "cursor": None}),
    (commands.list_agents, {"limit": 3, "cursor": None}),
    (commands.disable_user, {"name": "bob", "mutation_id": "m-1"}),
    (commands.disable_agent, {"name": "bot", "mutation_id": "m-1"}),
    (commands.rotate_agent, {"name": "bot", "token": token("new")}),
    (commands.bind_role, BIND),
    (commands.revoke_role, {"subject": "user:bob", "mutation_id": "m-1"}),
]
each_command = pytest.mark.parametrize(
    ("command", "args"), CALLS, ids=[call.__name__ for call, _ in CALLS]
)


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """Return an engine whose users are ana (owner) and bob (viewer)."""
    add_user(engine, "bob", Role.VIEWER)
    return engine


@pytest.fixture
def ana(engine: Engine) -> Caller:
    return log_in(engine, "ana")


@pytest.fixture
def admin(engine: Engine) -> Caller:
    add_user(engine, "adam", Role.ADMIN)
    return log_in(engine, "adam")


def refused(ask: Callable[[], Answer]) -> str:
    with pytest.raises(RefusedError) as caught:
        ask()
    return caught.value.code


def role_of(engine: Engine, subject: Subject) -> Role | None:
    binding = engine.policy.resolve(PROJECT, subject)[1]
    return None if binding is None else binding.role


def found(engine: Engine, subject: Subject) -> Identity:
    identity = engine.identities.find(subject)
    assert identity is not None
    return identity


def test_a_user_is_added_and_the_repeat_says_so(engine: Engine, ana: Caller) -> None:
    answer = commands.add_user(engine, ana, USER)
    body: dict[str, Any] = {"user": "cyd", "role": "viewer", "state": "active", "replayed": False}
    assert answer == Answer(body)
    again = commands.add_user(engine, ana, USER)
    assert again == Answer({**body, "replayed": True})
    cyd = Subject.user("cyd")
    password = found(engine, cyd).password
    assert password is not None
    assert verify("long enough", password)
    assert role_of(engine, cyd) is Role.VIEWER


def test_another_password_under_the_same_mutation_id_is_drift(engine: Engine, ana: Caller) -> None:
    commands.add_user(engine, ana, USER)
    other = {**USER, "password": "something else"}
    code = refused(lambda: commands.add_user(engine, ana, other))
    assert code == "role_binding_mutation_conflict"


def test_an_agent_is_added_with_the_token_that_its_client_drew(
    engine: Engine, ana: Caller, database: Database
) -> None:
    body: dict[str, Any] = {"agent": "bot", "token": token("bot")}
    assert commands.add_agent(engine, ana, AGENT) == Answer(body)
    commits = database.commits
    assert commands.add_agent(engine, ana, AGENT) == Answer(body)
    assert database.commits == commits
    principal = authenticate(engine, Caller(None, token("bot"), is_state_owner=False))
    assert principal is not None
    assert principal.subject == BOT
    drifted = {**AGENT, "token": token("other")}
    code = refused(lambda: commands.add_agent(engine, ana, drifted))
    assert code == "role_binding_mutation_conflict"


@each_command
def test_a_person_with_policy_manage_may_and_nobody_else(
    engine: Engine, command: Command, args: dict[str, Any], database: Database
) -> None:
    agent = add_agent(engine, "boss", Role.ADMIN)
    callers = {
        "login_required": [NOBODY, STATE_OWNER],
        "not_allowed": [log_in(engine, "bob"), agent],
        "login_refused": [Caller(token("x"), None, is_state_owner=True)],
    }
    commits = database.commits
    for code, shown in callers.items():
        for caller in shown:
            assert refused(lambda caller=caller: command(engine, caller, args)) == code  # type: ignore[misc]
    assert database.commits == commits


@each_command
def test_the_shape_of_the_arguments_is_exact(
    engine: Engine, command: Command, args: dict[str, Any], database: Database
) -> None:
    """Shape is judged before anything is read: a closed store makes no difference."""
    database.connection.close()
    wrong: list[Any] = [{**args, "more": 1}, [], None]
    required = set(args)
    wrong += [{key: value for key, value in args.items() if key != name} for name in required]
    wrong += [{**args, name: None} for name in args if name != "cursor"]
    wrong += [{**args, name: 7.5} for name in args]
    for each in wrong:
        with pytest.raises(UsageError):
            command(engine, NOBODY, each)


@pytest.mark.parametrize(
    ("command", "args"),
    [
        (commands.add_user, {**USER, "name": "a b"}),
        (commands.add_user, {**USER, "name": "-a"}),
        (commands.add_user, {**USER, "name": "x" * 65}),
        (commands.add_user, {**USER, "name": "夜"}),
        (commands.add_user, {**USER, "role": "root"}),
        (commands.add_user, {**USER, "role": "OWNER"}),
        (commands.add_user, {**USER, "password": "short"}),
        (commands.add_user, {**USER, "mutation_id": "a b"}),
        (commands.add_agent, {**AGENT, "token": "short"}),
        (commands.add_agent, {**AGENT, "token": token("bot") + "="}),
        (commands.list_users, {"limit": 0, "cursor": None}),
        (commands.list_users, {"limit": 65, "cursor": None}),
        (commands.list_users, {"limit": 1, "cursor": "x"}),
        (commands.list_users, {"limit": 1, "cursor": 1}),
        (commands.bind_role, {**BIND, "subject": "bob"}),
        (commands.bind_role, {**BIND, "subject": "system:edge"}),
        (commands.bind_role, {**BIND, "subject": "user:a b"}),
    ],
)
def test_malformed_arguments_are_a_wrong_call(
    engine: Engine, ana: Caller, command: Command, args: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        command(engine, ana, args)
    assert str(args.get("password")) not in caught.value.message


def test_names_are_used_once(engine: Engine, ana: Caller) -> None:
    assert refused(lambda: commands.add_user(engine, ana, {**USER, "name": "bob"})) == "name_taken"
    commands.add_agent(engine, ana, AGENT)
    other = {**AGENT, "mutation_id": "m-2"}
    assert refused(lambda: commands.add_agent(engine, ana, other)) == "name_taken"
    taken = {**other, "name": "other"}
    assert refused(lambda: commands.add_agent(engine, ana, taken)) == "token_taken"


def test_an_agent_is_never_owner(engine: Engine, ana: Caller) -> None:
    owner = {**AGENT, "role": "owner"}
    assert refused(lambda: commands.add_agent(engine, ana, owner)) == "agent_owner"
    commands.add_agent(engine, ana, AGENT)
    up = {"subject": "agent:bot", "role": "owner", "mutation_id": "m-2"}
    assert refused(lambda: commands.bind_role(engine, ana, up)) == "agent_owner"


@pytest.mark.adr("0006", "4")
def test_an_admin_gives_what_an_admin_has(engine: Engine, admin: Caller) -> None:
    commands.add_user(engine, admin, {**USER, "role": "admin"})
    owner = {**USER, "name": "dan", "role": "owner", "mutation_id": "m-2"}
    assert refused(lambda: commands.add_user(engine, admin, owner)) == "role_above_own"
    assert engine.identities.find(Subject.user("dan")) is None
    up = {**BIND, "role": "owner", "mutation_id": "m-3"}
    assert refused(lambda: commands.bind_role(engine, admin, up)) == "role_above_own"
    itself = {"subject": "user:adam", "role": "owner", "mutation_id": "m-4"}
    assert refused(lambda: commands.bind_role(engine, admin, itself)) == "role_above_own"
    assert role_of(engine, Subject.user("adam")) is Role.ADMIN


def test_an_admin_touches_no_owner(engine: Engine, admin: Caller) -> None:
    add_user(engine, "olga", Role.OWNER)
    args = {"subject": "user:ana", "mutation_id": "m-1"}
    assert refused(lambda: commands.revoke_role(engine, admin, args)) == "role_above_own"
    down = {**args, "role": "viewer"}
    assert refused(lambda: commands.bind_role(engine, admin, down)) == "role_above_own"
    end = {"name": "ana", "mutation_id": "m-1"}
    assert refused(lambda: commands.disable_user(engine, admin, end)) == "role_above_own"
    assert role_of(engine, ANA) is Role.OWNER


def test_a_role_is_bound_revoked_and_bound_again(engine: Engine, ana: Caller) -> None:
    body: dict[str, Any] = {
        "subject": "user:bob",
        "role": "operator",
        "state": "active",
        "version": 2,
        "replayed": False,
    }
    assert commands.bind_role(engine, ana, BIND) == Answer(body)
    assert commands.bind_role(engine, ana, BIND) == Answer({**body, "replayed": True})
    revoke = {"subject": "user:bob", "mutation_id": "m-2"}
    gone: dict[str, Any] = {**body, "role": None, "state": "revoked", "version": 3}
    assert commands.revoke_role(engine, ana, revoke) == Answer(gone)
    assert commands.bind_role(engine, ana, BIND) == Answer({**body, "replayed": True})
    assert role_of(engine, BOB) is None
    again = {**BIND, "mutation_id": "m-3"}
    assert commands.bind_role(engine, ana, again).body["version"] == 4
    drifted = {**again, "role": "admin"}
    code = refused(lambda: commands.bind_role(engine, ana, drifted))
    assert code == "role_binding_mutation_conflict"


def test_only_known_and_active_subjects_get_a_role(engine: Engine, ana: Caller) -> None:
    for subject in ("user:nobody", "agent:nobody"):
        args = {**BIND, "subject": subject}
        assert refused(lambda args=args: commands.bind_role(engine, ana, args)) == (  # type: ignore[misc]
            "identity_not_found"
        )
    commands.disable_user(engine, ana, {"name": "bob", "mutation_id": "m-0"})
    assert refused(lambda: commands.bind_role(engine, ana, BIND)) == "already_disabled"


@pytest.mark.adr("0006", "4")
def test_the_last_owner_stays(engine: Engine, ana: Caller) -> None:
    for ask in (
        lambda: commands.revoke_role(engine, ana, {"subject": "user:ana", "mutation_id": "m-1"}),
        lambda: commands.bind_role(engine, ana, {**BIND, "subject": "user:ana", "role": "admin"}),
        lambda: commands.disable_user(engine, ana, {"name": "ana", "mutation_id": "m-1"}),
    ):
        assert refused(ask) == "last_owner"
    assert role_of(engine, ANA) is Role.OWNER


def test_a_disabled_user_is_out_at_once(engine: Engine, ana: Caller) -> None:
    bob = log_in(engine, "bob")
    end = {"name": "bob", "mutation_id": "m-1"}
    body: dict[str, Any] = {"user": "bob", "state": "disabled", "replayed": False}
    assert commands.disable_user(engine, ana, end) == Answer(body)
    assert commands.disable_user(engine, ana, end) == Answer({**body, "replayed": True})
    with pytest.raises(RefusedError):
        authenticate(engine, bob)
    other = {**end, "mutation_id": "m-2"}
    assert refused(lambda: commands.disable_user(engine, ana, other)) == "already_disabled"
    assert refused(lambda: commands.disable_agent(engine, ana, end)) == "identity_not_found"


def test_an_agent_is_rotated_and_disabled(engine: Engine, ana: Caller) -> None:
    commands.add_agent(engine, ana, AGENT)
    args = {"name": "bot", "token": token("new")}
    assert commands.rotate_agent(engine, ana, args) == Answer(
        {"agent": "bot", "token": token("new")}
    )
    commands.rotate_agent(engine, ana, args)
    assert found(engine, BOT).token_digest == token_digest(token("new"))
    assert found(engine, BOT).version == 2
    end = {"name": "bot", "mutation_id": "m-2"}
    body: dict[str, Any] = {"agent": "bot", "state": "disabled", "replayed": False}
    assert commands.disable_agent(engine, ana, end) == Answer(body)
    assert refused(lambda: commands.rotate_agent(engine, ana, args)) == "already_disabled"
    args["name"] = "nobody"
    assert refused(lambda: commands.rotate_agent(engine, ana, args)) == "identity_not_found"


def test_lists_show_name_role_state_and_birth_page_by_page(engine: Engine, ana: Caller) -> None:
    commands.disable_user(engine, ana, {"name": "bob", "mutation_id": "m-0"})
    first = commands.list_users(engine, ana, {"limit": 1, "cursor": None})
    item = {"name": "ana", "role": "owner", "state": "active", "created_at_ms": WALL_MS}
    assert first.body["items"] == [item]
    rest = commands.list_users(engine, ana, {"limit": 64, "cursor": first.body["next_cursor"]})
    gone = {"name": "bob", "role": None, "state": "disabled", "created_at_ms": WALL_MS}
    assert rest == Answer({"items": [gone], "next_cursor": None})
    assert commands.list_agents(engine, ana, {"limit": 64, "cursor": None}) == Answer(
        {"items": [], "next_cursor": None}
    )


@pytest.mark.adr("0006", "7")
def test_a_role_that_changed_since_it_was_asked_changes_nothing(engine: Engine) -> None:
    """The fence is proven again inside the commit; here the role falls between the two reads."""
    add_user(engine, "adam", Role.ADMIN)
    adam = log_in(engine, "adam")
    policy = engine.policy

    class Falling:
        """Let the role fall after it was read for the last time."""

        def resolve(self, project_id: str, subject: Subject) -> Any:
            self.reads = getattr(self, "reads", 0) + 1
            answer = policy.resolve(project_id, subject)
            if self.reads == 2:
                name = Subject.user("adam")
                fall = BindRole(PROJECT, name, None, Role.VIEWER, "fall", EDGE)
                assert isinstance(policy.bind(fall), Changed)
            return answer

        def bind(self, event: BindRole) -> Any:
            return policy.bind(event)

    falling = engine._replace(policy=Falling())
    assert refused(lambda: commands.add_user(falling, adam, USER)) == "policy_fence_changed"
    assert engine.identities.find(Subject.user("cyd")) is None
