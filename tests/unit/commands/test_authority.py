from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.commands.authority import (
    Authorized,
    authenticate,
    authority_of,
    check_token,
    require,
    require_or_owner,
    require_proposer,
    token_digest,
)
from qinglong_edge.commands.engine import Caller, Engine
from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.errors import DamagedError, RefusedError, UsageError
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.policy import Authority, BindRole, PolicyFence, Role, Subject
from qinglong_edge.ports.identities import DisableIdentity
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, BOT, EDGE, HOUR_MS, PROJECT
from tests.support.clock import WALL_MS, FakeClocks
from tests.support.store import (
    NOBODY,
    STATE_OWNER,
    add_agent,
    add_user,
    log_in,
    token,
)

GARBAGE = [
    "",
    "x",
    token("session 1 ana") + "=",
    token("session 1 ana")[:-1],
    "ä" * 43,
    "a" * 43,
    "\ud800" * 43,
    token("nobody's"),
]


def refusal(ask: Callable[..., object], *asked: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        ask(*asked)
    return caught.value


def bind(engine: Engine, subject: Subject, role: Role | None) -> None:
    event = BindRole(PROJECT, subject, None, role, f"{subject}-{role}", EDGE)
    assert isinstance(engine.policy.bind(event), Changed)


def test_a_session_token_names_its_user_and_how_it_was_proven(
    engine: Engine, clocks: FakeClocks, database: Database
) -> None:
    caller = log_in(engine, "ana", Assurance.MULTI_FACTOR)
    tick = database.read(lambda tx: tx.now.tick)
    clocks.advance(60_000)
    assert authenticate(engine, caller) == Principal(
        ANA, Assurance.MULTI_FACTOR, "ses-1-ana", WALL_MS, tick
    )


def test_an_agent_token_names_its_agent_as_a_service(
    engine: Engine, clocks: FakeClocks, database: Database
) -> None:
    caller = add_agent(engine, "bot", Role.OPERATOR)
    clocks.advance(60_000)
    tick = database.read(lambda tx: tx.now.tick)
    assert authenticate(engine, caller) == Principal(
        BOT, Assurance.SERVICE, "agent:bot:1", WALL_MS + 60_000, tick
    )


def test_nothing_shown_is_nobody(engine: Engine) -> None:
    assert authenticate(engine, NOBODY) is None
    assert authenticate(engine, STATE_OWNER) is None


def test_two_tokens_at_once_are_a_wrong_call(engine: Engine) -> None:
    session, agent = log_in(engine, "ana"), add_agent(engine, "bot", Role.VIEWER)
    both = session._replace(agent_token=agent.agent_token)
    for ask in (require, require_or_owner, require_proposer):
        with pytest.raises(UsageError) as caught:
            ask(engine, both, "project.read")
        assert caught.value.code == "conflicting_credentials"


@pytest.mark.parametrize("shown", GARBAGE)
@pytest.mark.parametrize("agent", [False, True])
def test_a_token_that_is_none_is_refused_like_one_that_has_ended(
    engine: Engine, shown: str, *, agent: bool
) -> None:
    caller = NOBODY._replace(agent_token=shown) if agent else NOBODY._replace(session_token=shown)
    refused = refusal(authenticate, engine, caller)
    assert refused.code == "login_refused"
    assert refused.details == {}
    assert not shown or shown not in refused.message


def test_ended_and_disabled_tokens_are_refused_alike(engine: Engine, clocks: FakeClocks) -> None:
    add_user(engine, "bob", Role.VIEWER)
    bob, bot = log_in(engine, "bob"), add_agent(engine, "bot", Role.VIEWER)
    unknown = [
        refusal(authenticate, engine, Caller(token("x"), None, is_state_owner=False)),
        refusal(authenticate, engine, Caller(None, token("x"), is_state_owner=False)),
    ]
    for name, subject in (("end-bob", BOB), ("end-bot", BOT)):
        engine.identities.disable(DisableIdentity(PROJECT, subject, name, ANA))
    ana = log_in(engine, "ana")
    clocks.advance(HOUR_MS)
    ended = [refusal(authenticate, engine, caller) for caller in (bob, bot, ana)]
    messages = [(each.code, each.message) for each in (unknown[0], unknown[1], unknown[0])]
    assert [(each.code, each.message) for each in ended] == messages


def test_a_token_of_one_kind_is_none_of_the_other(engine: Engine) -> None:
    session, agent = log_in(engine, "ana"), add_agent(engine, "bot", Role.VIEWER)
    swapped = Caller(agent.agent_token, None, is_state_owner=False)
    assert refusal(authenticate, engine, swapped).code == "login_refused"
    swapped = Caller(None, session.session_token, is_state_owner=False)
    assert refusal(authenticate, engine, swapped).code == "login_refused"


@pytest.mark.scenario(13, 17, 24)
def test_whoever_is_allowed_gets_the_fence_of_that_decision(engine: Engine) -> None:
    add_user(engine, "bob", Role.VIEWER)
    bind(engine, BOB, Role.ADMIN)
    authorized = require(engine, log_in(engine, "bob"), "policy.manage")
    assert authorized.principal.subject == BOB
    assert authorized.fence == PolicyFence(1, 2)


@pytest.mark.scenario(12, 13, 18)
@pytest.mark.parametrize(
    ("role", "permission", "reason"),
    [
        (Role.VIEWER, "policy.manage", "permission_missing"),
        (Role.ADMIN, "project.manage", "permission_missing"),
        (None, "project.read", "subject_unbound"),
    ],
)
def test_whoever_is_not_allowed_hears_the_reason_and_nothing_of_objects(
    engine: Engine, role: Role | None, permission: str, reason: str
) -> None:
    add_user(engine, "bob", role or Role.VIEWER)
    if role is None:
        bind(engine, BOB, None)
    bob = log_in(engine, "bob")
    refused = refusal(require, engine, bob, permission)
    assert (refused.code, refused.details) == ("not_allowed", {"reason": reason})
    refused = refusal(require_proposer, engine, bob, permission)
    assert (refused.code, refused.details) == ("proposal_denied", {"reason": reason})


@pytest.mark.scenario(15, 16)
@pytest.mark.parametrize("role", [Role.OPERATOR, Role.VIEWER])
def test_in_an_archived_project_nothing_but_reading_is_allowed(
    engine: Engine, database: Database, role: Role
) -> None:
    add_user(engine, "bob", role)
    bob = log_in(engine, "bob")
    database.connection.execute("UPDATE projects SET status = 'archived', version = 2")
    assert refusal(require, engine, bob, "run.start").details == {"reason": "project_archived"}
    assert require(engine, bob, "artifact.read").fence == PolicyFence(2, 1)


def test_nobody_is_told_to_log_in(engine: Engine) -> None:
    for ask in (require, require_proposer, require_or_owner):
        assert refusal(ask, engine, NOBODY, "project.read").code == "login_required"
    assert refusal(require, engine, STATE_OWNER, "project.read").code == "login_required"
    assert refusal(require_proposer, engine, STATE_OWNER, "run.start").code == "login_required"


@pytest.mark.parametrize("permission", ["", "logs", "tool.call:", "tool.call:*"])
def test_a_word_that_is_no_permission_is_a_wrong_call(engine: Engine, permission: str) -> None:
    with pytest.raises(UsageError):
        require(engine, log_in(engine, "ana"), permission)


@pytest.mark.scenario(19, 28)
def test_an_agent_reads_and_proposes_but_never_acts(engine: Engine) -> None:
    bot = add_agent(engine, "bot", Role.OPERATOR)
    assert require(engine, bot, "project.read").fence == PolicyFence(1, 1)
    refused = refusal(require, engine, bot, "run.start")
    assert refused.code == "not_allowed"
    assert refused.details == {"reason": "agent_action_requires_approval"}
    authorized = require_proposer(engine, bot, "tool.call:shell.exec")
    assert authorized == Authorized(authorized.principal, PolicyFence(1, 1))
    assert authorized.principal.subject == BOT


@pytest.mark.scenario(28)
@pytest.mark.adr("0006", "2")
def test_only_whoever_needs_approval_proposes(engine: Engine) -> None:
    refused = refusal(require_proposer, engine, log_in(engine, "ana"), "run.start")
    assert (refused.code, refused.details) == ("proposal_denied", {"reason": "role_grant"})
    viewer = add_agent(engine, "eye", Role.VIEWER)
    refused = refusal(require_proposer, engine, viewer, "run.start")
    assert (refused.code, refused.details) == ("proposal_denied", {"reason": "permission_missing"})
    refused = refusal(require_proposer, engine, viewer, "project.read")
    assert refused.details == {"reason": "role_grant"}


def test_the_owner_of_the_state_needs_no_session_where_that_is_said(engine: Engine) -> None:
    assert require_or_owner(engine, STATE_OWNER, "project.manage") is None


def test_a_session_that_holds_decides_whoever_shows_it(engine: Engine) -> None:
    add_user(engine, "eve", Role.VIEWER)
    eve = log_in(engine, "eve")._replace(is_state_owner=True)
    found = require_or_owner(engine, eve, "project.read")
    assert found is not None
    assert found.subject == Subject.user("eve")
    assert refusal(require_or_owner, engine, eve, "project.manage").code == "not_allowed"


@pytest.mark.parametrize("shown", GARBAGE)
def test_a_forgotten_session_does_not_stop_the_owner(engine: Engine, shown: str) -> None:
    caller = Caller(shown, None, is_state_owner=True)
    assert require_or_owner(engine, caller, "project.manage") is None
    stranger = caller._replace(is_state_owner=False)
    assert refusal(require_or_owner, engine, stranger, "project.manage").code == "login_refused"


def test_an_ended_session_does_not_stop_the_owner(engine: Engine, clocks: FakeClocks) -> None:
    caller = log_in(engine, "ana")._replace(is_state_owner=True)
    clocks.advance(HOUR_MS)
    assert require_or_owner(engine, caller, "project.manage") is None


def test_an_agent_on_the_owners_uid_stays_an_agent(engine: Engine) -> None:
    bot = add_agent(engine, "bot", Role.ADMIN)._replace(is_state_owner=True)
    assert refusal(require_or_owner, engine, bot, "project.manage").code == "not_allowed"
    wrong = bot._replace(agent_token=token("x"))
    assert refusal(require_or_owner, engine, wrong, "project.manage").code == "login_refused"


def test_the_role_behind_an_authority_is_that_of_its_fence(engine: Engine) -> None:
    add_user(engine, "bob", Role.ADMIN)
    authorized = require(engine, log_in(engine, "bob"), "policy.manage")
    assert authority_of(engine, authorized) == Authority(Role.ADMIN, PolicyFence(1, 1))
    bind(engine, BOB, Role.OPERATOR)
    assert refusal(authority_of, engine, authorized).code == "policy_fence_changed"
    bind(engine, BOB, None)
    assert refusal(authority_of, engine, authorized).code == "policy_fence_changed"


@pytest.mark.scenario(23)
@pytest.mark.parametrize("table", ["role_bindings", "projects"])
def test_a_damaged_policy_is_no_answer(engine: Engine, database: Database, table: str) -> None:
    ana = log_in(engine, "ana")
    database.connection.execute("DROP TRIGGER role_bindings_are_immutable")
    database.connection.execute("PRAGMA ignore_check_constraints = ON")
    change = {"role_bindings": "role = NULL", "projects": "status = 'x'"}[table]
    database.connection.execute(f"UPDATE {table} SET {change}")
    for ask in (require, require_proposer, require_or_owner):
        with pytest.raises(DamagedError) as caught:
            ask(engine, ana, "project.read")
        assert caught.value.code == "policy_damaged"


def test_an_unknown_project_denies(engine: Engine) -> None:
    ana = log_in(engine, "ana")
    lost = engine._replace(facts=engine.facts._replace(project_id="another"))
    refused = refusal(require, lost, ana, "project.read")
    assert refused.details == {"reason": "project_not_found"}


@pytest.mark.parametrize("shown", [*GARBAGE[:-1], None, 7])
def test_a_token_has_one_spelling(shown: object) -> None:
    with pytest.raises(UsageError) as caught:
        check_token(shown, "token")
    assert not isinstance(shown, str) or not shown or shown not in caught.value.message


def test_what_is_stored_of_a_token_is_its_digest() -> None:
    shown = check_token(token("x"), "token")
    assert len(shown) == 43
    assert token_digest(shown) == sha256_hex(shown.encode())
