from typing import Any

import pytest

from qinglong_edge.commands.authority import authenticate
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.sessions import login, logout
from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import RefusedError, UnavailableError, UsageError
from qinglong_edge.domain.identity import Assurance, PasswordHash
from qinglong_edge.domain.policy import Role
from qinglong_edge.executor import passwords
from qinglong_edge.ports.identities import DisableIdentity
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, PROJECT
from tests.support.clock import WALL_MS, FakeClocks
from tests.support.store import (
    NOBODY,
    PASSWORD,
    add_agent,
    add_user,
    log_in,
    token,
)

LOGIN = {
    "name": "ana",
    "password": PASSWORD,
    "totp": None,
    "recovery_code": None,
    "session_token": token("mine"),
    "session_id": "ses-1",
}
MINE = Caller(token("mine"), None, is_state_owner=False)


def refused(engine: Engine, **changes: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        login(engine, NOBODY, {**LOGIN, **changes})
    return caught.value


def test_a_password_opens_a_session_of_one_factor(engine: Engine) -> None:
    assert login(engine, NOBODY, LOGIN) == Answer(
        {
            "subject": "user:ana",
            "assurance": "single_factor",
            "authenticated_at_ms": WALL_MS,
            "expires_at_ms": WALL_MS + limits.SESSION_MS,
            "session_id": "ses-1",
        }
    )
    principal = authenticate(engine, MINE)
    assert principal is not None
    assert (principal.subject, principal.assurance) == (ANA, Assurance.SINGLE_FACTOR)
    assert principal.authentication_id == "ses-1"


def test_the_answer_does_not_repeat_the_token(engine: Engine) -> None:
    assert token("mine") not in str(login(engine, NOBODY, LOGIN))


def test_a_repeated_line_opens_one_session(
    engine: Engine, clocks: FakeClocks, database: Database
) -> None:
    first = login(engine, NOBODY, LOGIN)
    clocks.advance(1_000)
    assert login(engine, NOBODY, LOGIN) == first
    assert database.connection.execute("SELECT count(*) FROM sessions").fetchone()[0] == 1


@pytest.mark.parametrize("change", [{"session_id": "ses-2"}, {"session_token": token("other")}])
def test_a_drawn_id_or_token_opens_no_second_session(
    engine: Engine, change: dict[str, str]
) -> None:
    login(engine, NOBODY, LOGIN)
    assert refused(engine, **change).code == "session_taken"


@pytest.mark.adr("0006", "5")
def test_unknown_wrong_and_disabled_are_one_answer(engine: Engine, database: Database) -> None:
    add_user(engine, "bob", Role.VIEWER)
    add_agent(engine, "bot", Role.VIEWER)
    engine.identities.disable(DisableIdentity(PROJECT, BOB, "end-bob", ANA))
    commits = database.commits
    cases: list[dict[str, str]] = [
        {"name": "nobody"},
        {"name": "bot"},
        {"password": "wrong"},
        {"password": ""},
        {"password": PASSWORD + "\n"},
        {"name": "bob"},
        {"name": "bob", "password": "wrong password"},
    ]
    answers = [refused(engine, **case) for case in cases]
    assert {(each.code, each.message, str(each.details)) for each in answers} == {
        (answers[0].code, answers[0].message, "{}")
    }
    assert answers[0].code == "login_refused"
    assert database.commits == commits


@pytest.mark.adr("0006", "5")
def test_every_name_costs_one_stretching_of_the_same_scheme(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_user(engine, "bob", Role.VIEWER)
    engine.identities.disable(DisableIdentity(PROJECT, BOB, "end-bob", ANA))
    stretched = list[str]()
    real = passwords.verify

    def counted(password: str, known: PasswordHash) -> bool:
        stretched.append(known.scheme)
        return real(password, known)

    monkeypatch.setattr(passwords, "verify", counted)
    login(engine, NOBODY, LOGIN)
    for name in ("ana", "bob", "nobody"):
        refused(engine, name=name, password="wrong password", session_id="ses-2")
    assert len(stretched) == 4
    assert len(set(stretched)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": 7},
        {"password": 7},
        {"password": None},
        {"password": "x" * 1_025},
        {"session_token": "short"},
        {"session_token": token("mine") + "="},
        {"session_id": ""},
        {"session_id": "x" * 65},
        {"more": 1},
    ],
)
def test_malformed_arguments_are_a_wrong_call(engine: Engine, change: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        login(engine, NOBODY, {**LOGIN, **change})
    assert token("mine") not in caught.value.message


@pytest.mark.parametrize("name", sorted(LOGIN))
def test_every_argument_is_required(engine: Engine, name: str) -> None:
    with pytest.raises(UsageError):
        login(engine, NOBODY, {key: value for key, value in LOGIN.items() if key != name})


def test_a_scheme_of_another_machine_says_what_is_missing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_user(
        engine, "bob", Role.VIEWER, password=PasswordHash("scrypt:4:8:1", b"s" * 16, b"v" * 32)
    )
    monkeypatch.setattr(passwords, "_find_scrypt", lambda: None)
    with pytest.raises(UnavailableError) as caught:
        login(engine, NOBODY, {**LOGIN, "name": "bob"})
    assert caught.value.code == "password_scheme_unavailable"


def test_a_password_changed_between_proof_and_session_opens_none(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    real = passwords.verify

    def slow(password: str, known: PasswordHash) -> bool:
        right = real(password, known)
        database.connection.execute("UPDATE identities SET version = version + 1")
        return right

    monkeypatch.setattr(passwords, "verify", slow)
    assert refused(engine).code == "login_refused"


def test_a_clock_that_nobody_believes_stops_no_login(engine: Engine, clocks: FakeClocks) -> None:
    clocks.step_wall(-400 * 86_400_000)
    assert login(engine, NOBODY, LOGIN).body["authenticated_at_ms"] == WALL_MS
    assert authenticate(engine, MINE) is not None


def test_logging_out_ends_the_session_that_is_shown(engine: Engine) -> None:
    login(engine, NOBODY, LOGIN)
    other = log_in(engine, "ana", nth=2)
    assert logout(engine, MINE, {}) == Answer({"ended": True})
    with pytest.raises(RefusedError):
        authenticate(engine, MINE)
    assert authenticate(engine, other) is not None
    assert logout(engine, MINE, {}) == Answer({"ended": False})


def test_logging_out_needs_a_session_and_takes_nothing_else(engine: Engine) -> None:
    with pytest.raises(RefusedError) as caught:
        logout(engine, NOBODY, {})
    assert caught.value.code == "login_required"
    with pytest.raises(UsageError):
        logout(engine, MINE, {"all": True})
    assert logout(engine, MINE._replace(session_token="garbage"), {}) == Answer({"ended": False})
