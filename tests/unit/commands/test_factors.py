"""`user totp`, `user reset`, and logging in with a second factor."""

import base64
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from qinglong_edge.commands.authority import authenticate
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.factors import enrol_totp, reset_user
from qinglong_edge.commands.sessions import login
from qinglong_edge.commands.table import TABLE
from qinglong_edge.domain import totp
from qinglong_edge.domain.errors import RefusedError, UsageError
from qinglong_edge.domain.identity import Assurance
from qinglong_edge.domain.policy import Role
from qinglong_edge.ports.identities import DisableIdentity
from tests.support.builders import ANA, BOB, PROJECT
from tests.support.clock import FakeClocks
from tests.support.store import (
    NOBODY,
    PASSWORD,
    STATE_OWNER,
    add_agent,
    add_user,
    log_in,
    make_engine,
    open_store,
    token,
)

DAY_MS = 86_400_000
MULTI = Assurance.MULTI_FACTOR
RESET = {"name": "ana", "password": "another horse", "reset_id": "res-1"}


class Place:
    """One store with ana (owner), adam (admin) and bob (viewer)."""

    def __init__(self) -> None:
        self.clocks = FakeClocks()
        self.database = open_store(":memory:", self.clocks)
        self.engine: Engine = make_engine(self.database, self.clocks)
        for name, role in (("ana", Role.OWNER), ("adam", Role.ADMIN), ("bob", Role.VIEWER)):
            add_user(self.engine, name, role)

    def enrolled(self, name: str = "ana", seed: str = "seed") -> Answer:
        """Give a user the first key, from their own session."""
        return enrol_totp(self.engine, log_in(self.engine, name, nth=9), asked(name, seed))

    def code(self, answer: Answer) -> str:
        """Return the code of now, as an authenticator would make it."""
        query = parse_qs(urlsplit(str(answer.body["otpauth_uri"])).query)
        secret = base64.b32decode(query["secret"][0])
        return totp.hotp(secret, self.clocks.wall_ms // 30_000)

    def enter(self, nth: int, **changes: Any) -> Answer:
        args: dict[str, Any] = {
            "name": "ana", "password": PASSWORD, "totp": None, "recovery_code": None,
            "session_token": token(f"login {nth}"), "session_id": f"login-{nth}",
        }  # fmt: skip
        return login(self.engine, NOBODY, args | changes)

    def count(self, table: str) -> int:
        found = self.database.connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(found[0])


def asked(name: str, seed: str = "seed") -> dict[str, Any]:
    return {"name": name, "seed": token(seed)}


def refused(ask: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        ask()
    return caught.value


def codes(answer: Answer) -> list[str]:
    found = answer.body["recovery_codes"]
    assert isinstance(found, list)
    return found


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.mark.adr("0006", "10")
def test_a_user_enrols_the_first_key_with_a_password_session(place: Place) -> None:
    answer = place.enrolled("bob")
    assert set(answer.body) == {"otpauth_uri", "recovery_codes"}
    assert str(answer.body["otpauth_uri"]).startswith(f"otpauth://totp/{PROJECT}:bob?secret=")
    assert len(set(codes(answer))) == 10
    assert (place.count("totp_keys"), place.count("recovery_codes")) == (1, 10)


def test_recovery_codes_are_stored_as_digests_only(place: Place) -> None:
    answer = place.enrolled()
    stored = "\n".join(place.database.connection.iterdump())
    for code in codes(answer):
        assert code not in stored
        assert code.replace("-", "") not in stored
    assert token("seed") not in stored


def test_the_same_seed_is_the_same_enrolment(place: Place) -> None:
    first = place.enrolled()
    commits = place.database.commits
    caller = log_in(place.engine, "ana", nth=8)
    assert enrol_totp(place.engine, caller, asked("ana")) == first
    assert place.database.commits == commits + 1  # the login alone


def test_a_seed_belongs_to_one_user(place: Place) -> None:
    place.enrolled("bob")
    assert refused(lambda: place.enrolled("ana")).code == "token_taken"
    assert place.count("totp_keys") == 1


@pytest.mark.adr("0006", "10")
def test_replacing_a_key_needs_a_recent_second_factor(place: Place) -> None:
    first = place.enrolled()
    again = asked("ana", "other")
    weak = log_in(place.engine, "ana")
    assert refused(lambda: enrol_totp(place.engine, weak, again)).code == (
        "strong_authentication_required"
    )
    strong = log_in(place.engine, "ana", MULTI, nth=2)
    place.clocks.advance(300_001)
    assert refused(lambda: enrol_totp(place.engine, strong, again)).code == (
        "strong_authentication_required"
    )
    strong = log_in(place.engine, "ana", MULTI, nth=3)
    second = enrol_totp(place.engine, strong, again)
    assert not set(codes(first)) & set(codes(second))
    assert (place.count("totp_keys"), place.count("recovery_codes")) == (1, 10)
    assert refused(lambda: place.enter(1, recovery_code=codes(first)[0])).code == "login_refused"
    assert refused(lambda: place.enter(2, totp=place.code(first))).code == "login_refused"
    assert place.enter(3, totp=place.code(second)).body["assurance"] == "multi_factor"


@pytest.mark.adr("0006", "10")
def test_another_users_key_needs_permission_proof_and_rank(place: Place) -> None:
    def ask(caller: Caller, name: str) -> Answer:
        return enrol_totp(place.engine, caller, asked(name))

    strong_bob = log_in(place.engine, "bob", MULTI)
    assert refused(lambda: ask(strong_bob, "ana")).code == "not_allowed"
    assert refused(lambda: ask(strong_bob, "nobody")).code == "not_allowed"
    weak_ana = log_in(place.engine, "ana")
    assert refused(lambda: ask(weak_ana, "bob")).code == "strong_authentication_required"
    strong_adam = log_in(place.engine, "adam", MULTI)
    assert refused(lambda: ask(strong_adam, "ana")).code == "role_above_own"
    assert refused(lambda: ask(strong_adam, "nobody")).code == "identity_not_found"
    assert place.count("totp_keys") == 0
    assert len(codes(ask(strong_adam, "bob"))) == 10


def test_an_agent_enrols_nobody(place: Place) -> None:
    bot = add_agent(place.engine, "bot", Role.ADMIN)
    assert refused(lambda: enrol_totp(place.engine, bot, asked("bot"))).code == "not_allowed"
    assert refused(lambda: enrol_totp(place.engine, NOBODY, asked("ana"))).code == "login_required"
    assert refused(lambda: enrol_totp(place.engine, STATE_OWNER, asked("ana"))).code == (
        "login_required"
    )


def test_a_disabled_user_gets_no_key(place: Place) -> None:
    place.engine.identities.disable(DisableIdentity(PROJECT, BOB, "end-bob", ANA))
    strong = log_in(place.engine, "ana", MULTI)
    error = refused(lambda: enrol_totp(place.engine, strong, asked("bob")))
    assert error.code == "already_disabled"


@pytest.mark.parametrize(
    "change", [{"name": "a b"}, {"seed": "short"}, {"seed": None}, {"more": 1}]
)
def test_malformed_arguments_of_totp(place: Place, change: dict[str, Any]) -> None:
    caller = log_in(place.engine, "ana")
    with pytest.raises(UsageError):
        enrol_totp(place.engine, caller, {**asked("ana"), **change})


@pytest.mark.adr("0006", "8")
def test_a_code_makes_two_factors_and_works_once(place: Place) -> None:
    code = place.code(place.enrolled())
    body = place.enter(1, totp=code).body
    assert body["assurance"] == "multi_factor"
    principal = authenticate(place.engine, Caller(token("login 1"), None, is_state_owner=False))
    assert principal is not None
    assert principal.assurance is MULTI
    assert refused(lambda: place.enter(2, totp=code)).code == "login_refused"
    place.clocks.advance(29_999)
    assert refused(lambda: place.enter(2, totp=code)).code == "login_refused"


def test_the_same_line_again_is_the_same_session(place: Place) -> None:
    code = place.code(place.enrolled())
    first = place.enter(1, totp=code)
    assert place.enter(1, totp=code) == first


def test_two_factors_do_not_forbid_the_password_alone(place: Place) -> None:
    place.enrolled()
    assert place.enter(1).body["assurance"] == "single_factor"


@pytest.mark.adr("0006", "9")
def test_a_wrong_code_and_a_wrong_password_are_one_answer(place: Place) -> None:
    answer = place.enrolled()
    right, recovery = place.code(answer), codes(answer)[0]
    wrong = f"{(int(right) + 1) % 1_000_000:06}"
    commits = place.database.commits
    cases: list[dict[str, Any]] = [
        {"password": "wrong password"},
        {"totp": wrong},
        {"password": "wrong password", "totp": right},
        {"recovery_code": "0" * 20},
        {"password": "wrong password", "recovery_code": recovery},
        {"name": "nobody", "totp": right},
        {"name": "bob", "totp": right},
        {"name": "bob", "recovery_code": recovery},
    ]
    errors = [refused(lambda case=case: place.enter(1, **case)) for case in cases]
    assert {(each.code, each.message, str(each.details)) for each in errors} == {
        ("login_refused", errors[0].message, "{}")
    }
    assert place.database.commits == commits
    assert place.enter(1, totp=right).body["assurance"] == "multi_factor"
    assert place.enter(2, recovery_code=recovery).body["assurance"] == "multi_factor"


@pytest.mark.adr("0006", "8")
def test_each_recovery_code_works_once(place: Place) -> None:
    for nth, code in enumerate(codes(place.enrolled())):
        body = place.enter(nth, recovery_code=code.lower()).body
        assert body["assurance"] == "multi_factor"
        assert refused(lambda again=code: place.enter(99, recovery_code=again)).code == (
            "login_refused"
        )


@pytest.mark.adr("0006", "9")
def test_a_bad_clock_accepts_recovery_codes_only(place: Place) -> None:
    answer = place.enrolled()
    place.clocks.step_wall(-400 * DAY_MS)
    code = place.code(answer)
    for case in ({}, {"password": "wrong password"}, {"name": "nobody"}):
        changes: dict[str, Any] = {"totp": code, **case}
        assert refused(lambda c=changes: place.enter(1, **c)).code == "clock_untrusted"
    assert place.enter(2, recovery_code=codes(answer)[0]).body["assurance"] == "multi_factor"
    assert place.enter(3).body["assurance"] == "single_factor"


def test_two_codes_at_once_and_malformed_ones_are_a_wrong_call(place: Place) -> None:
    for changes in (
        {"totp": "123456", "recovery_code": "0" * 20},
        {"totp": "12345"},
        {"totp": 123456},
        {"recovery_code": "short"},
    ):
        with pytest.raises(UsageError):
            place.enter(1, **changes)


@pytest.mark.adr("0006", "12")
def test_a_reset_ends_factor_codes_and_sessions_and_is_recorded(place: Place) -> None:
    answer = place.enrolled()
    session = log_in(place.engine, "ana", MULTI)
    other = log_in(place.engine, "bob")
    place.clocks.advance(5)
    before = place.engine.identities.find(ANA)
    assert before is not None
    body = reset_user(place.engine, STATE_OWNER, RESET).body
    assert body == {
        "user": "ana", "state": "active", "version": before.version + 1, "replayed": False,
    }  # fmt: skip
    assert (place.count("totp_keys"), place.count("recovery_codes")) == (0, 0)
    assert refused(lambda: authenticate(place.engine, session)).code == "login_refused"
    assert authenticate(place.engine, other) is not None
    assert refused(lambda: place.enter(1)).code == "login_refused"
    late = {"password": "another horse", "totp": place.code(answer)}
    assert refused(lambda: place.enter(1, **late)).code == "login_refused"
    assert place.enter(1, password="another horse").body["assurance"] == "single_factor"
    row = place.database.connection.execute("SELECT * FROM identity_resets").fetchone()
    assert tuple(row) == ("res-1", "user:ana", before.version + 1, place.clocks.wall_ms)


def test_a_repeated_reset_is_one_reset(place: Place) -> None:
    first = reset_user(place.engine, STATE_OWNER, RESET).body
    again = reset_user(place.engine, STATE_OWNER, RESET).body
    assert again == {**first, "replayed": True}
    assert place.count("identity_resets") == 1
    other = {**RESET, "name": "bob"}
    assert refused(lambda: reset_user(place.engine, STATE_OWNER, other)).code == "reset_id_taken"


@pytest.mark.adr("0006", "12")
def test_only_the_owner_of_the_state_resets(place: Place) -> None:
    commits = place.database.commits
    for caller in (NOBODY, log_in(place.engine, "ana", MULTI)):
        error = refused(lambda c=caller: reset_user(place.engine, c, RESET))
        assert error.code == "not_allowed"
    assert place.database.commits == commits + 1  # the login alone
    assert {name for name, entry in TABLE.items() if entry.offline} == {"user.reset"}


def test_whom_a_reset_does_not_help(place: Place) -> None:
    add_agent(place.engine, "bot", Role.VIEWER)
    place.engine.identities.disable(DisableIdentity(PROJECT, BOB, "end-bob", ANA))
    for name, code in (
        ("nobody", "identity_not_found"), ("bot", "identity_not_found"),
        ("bob", "already_disabled"),
    ):  # fmt: skip
        changed = {**RESET, "name": name}
        error = refused(lambda c=changed: reset_user(place.engine, STATE_OWNER, c))
        assert error.code == code
    for change in ({"password": "short"}, {"reset_id": ""}, {"more": 1}):
        with pytest.raises(UsageError):
            reset_user(place.engine, STATE_OWNER, {**RESET, **change})
    assert place.count("identity_resets") == 0
