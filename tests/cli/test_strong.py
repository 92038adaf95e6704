"""The second factor from outside; its codes are computed here, with the library's own HMAC."""

import base64
import hashlib
import hmac
import sqlite3
import struct
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.conftest import PASSWORD, Edge, Json
from tests.cli.test_runtime import killed_in_the_middle

STEP_S = 30


def code_at(secret: bytes, step: int) -> str:
    """Return the code of a step (RFC 6238)."""
    mac = hmac.new(secret, struct.pack(">Q", step), hashlib.sha1).digest()
    (number,) = struct.unpack_from(">I", mac, mac[-1] & 15)
    return f"{(number & 0x7FFFFFFF) % 1_000_000:06}"


class Authenticator:
    """A phone: it holds what `user totp` printed, and never shows the same step twice."""

    def __init__(self, printed: Json) -> None:
        uri = urlsplit(printed["otpauth_uri"])
        assert (uri.scheme, uri.netloc) == ("otpauth", "totp")
        self.secret = base64.b32decode(parse_qs(uri.query)["secret"][0])
        self.label = uri.path
        self.recovery_codes: list[str] = printed["recovery_codes"]
        self._step = 0

    def code(self) -> str:
        """Return the code of now, or the next one; both are still good a whole step later."""
        here = int(time.time()) // STEP_S
        self._step = max(self._step + 1, here)
        assert self._step <= here + 1, "two logins in half a minute are all that a window gives"
        return code_at(self.secret, self._step)


@pytest.fixture
def phone(ready: Edge) -> Authenticator:
    return Authenticator(ready.run("user", "totp", "ana"))


def test_what_is_printed_once(ready: Edge, phone: Authenticator) -> None:
    assert phone.label == "/default:ana"
    assert len(set(phone.recovery_codes)) == 10
    assert all(len(code.replace("-", "")) == 20 for code in phone.recovery_codes)
    stored = b"".join(ready.snapshot().values())
    for code in phone.recovery_codes:
        assert code.encode() not in stored
    for name in ("state.db", "state.db-wal"):
        if (ready.state / name).exists():
            assert (ready.state / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.adr("0006", "6")
@pytest.mark.parametrize("risk", ["high", "critical"])
@pytest.mark.alone("serve", reason="opens the database beside its owner")
def test_high_risk_is_approved_with_two_factors(
    ready: Edge, phone: Authenticator, risk: str
) -> None:
    ready.propose(["/bin/true"], "--id", "one", "--risk", risk)
    ready.login()
    error = ready.fails("action", "approve", "one", expect=3)
    assert error["code"] == "strong_authentication_required"
    text = ready.call("action", "approve", "one").stderr.decode()
    assert "hint: log in again with --totp or --recovery-code" in text
    assert ready.login("ana", "--totp", phone.code())["assurance"] == "multi_factor"
    assert ready.approve("one")["state"] == "consumed"
    ready.run("cycle")
    assert ready.show("one")["effective_state"] == "succeeded"
    assert ready.run("verify") == {"ok": True, "problems": []}
    with sqlite3.connect(ready.state / "state.db") as connection:
        facts = connection.execute("SELECT kind, mutation_id, assurance FROM authorization_facts")
        decision = ready.show("one")["approval"]["decision_id"]
        assert facts.fetchall() == [("decision", decision, "multi_factor")]
    connection.close()


def test_a_held_request_of_high_risk_is_handed_on(ready: Edge, phone: Authenticator) -> None:
    """The proof stands behind the decision; handing on spends what was decided."""
    ready.login("ana", "--totp", phone.code())
    ready.propose(["/bin/true"], "--id", "one", "--risk", "high")
    assert ready.approve("one", "--hold")["state"] == "approved"
    ready.login()
    assert ready.run("action", "dispatch", "one")["state"] == "consumed"


def test_an_unknown_outcome_is_repeated_with_two_factors(ready: Edge, phone: Authenticator) -> None:
    dispatch_id = killed_in_the_middle(ready)
    ready.run("cycle")
    argv = ready.show("killed")["preview"]["argv"]
    ready.propose(argv, "--id", "again", "--repeats", dispatch_id)
    error = ready.fails("action", "approve", "again", expect=3)
    assert error["code"] == "strong_authentication_required"
    ready.login("ana", "--totp", phone.code())
    assert ready.approve("again")["state"] == "consumed"


@pytest.mark.adr("0006", "8")
def test_a_code_opens_one_session(ready: Edge, phone: Authenticator) -> None:
    words = ["login", "ana", "--password-file", str(ready.home / "ana.password")]
    code = phone.code()
    ready.run(*words, "--totp", code)
    replayed = ready.fails(*words, "--totp", code, expect=3)
    wrong = f"{(int(code) + 1) % 1_000_000:06}"
    file = ready.write("wrong", "not the password\n")
    refused = ready.fails("login", "ana", "--password-file", file, "--totp", code, expect=3)
    assert replayed["code"] == "login_refused"
    assert ready.fails(*words, "--totp", wrong, expect=3) == replayed == refused
    assert ready.run(*words)["assurance"] == "single_factor"


@pytest.mark.adr("0006", "8")
def test_a_recovery_code_opens_one_session(ready: Edge, phone: Authenticator) -> None:
    words = ["login", "ana", "--password-file", str(ready.home / "ana.password")]
    file = ready.write("recovery", phone.recovery_codes[3].lower() + "\n")
    assert ready.run(*words, "--recovery-code", file)["assurance"] == "multi_factor"
    used = ready.fails(*words, "--recovery-code", file, expect=3)
    unknown = ready.fails(*words, "--recovery-code", "-", stdin="0" * 20, expect=3)
    assert used == unknown
    assert used["code"] == "login_refused"
    by_stdin = ready.run(*words, "--recovery-code", "-", stdin=phone.recovery_codes[4])
    assert by_stdin["assurance"] == "multi_factor"


def test_wrong_calls_of_login(ready: Edge) -> None:
    words = ["login", "ana", "--password-file", str(ready.home / "ana.password")]
    code = ready.write("recovery", "0" * 20)
    for more in (
        ["--totp", "12345"], ["--totp", "abcdef"],
        ["--totp", "123456", "--recovery-code", str(code)],
        ["--recovery-code", str(ready.write("short", "short"))],
        ["--recovery-code", str(ready.home / "missing")],
    ):  # fmt: skip
        error = ready.fails(*words, *more, expect=2)
        assert "12345" not in str(error)
    stdin_twice = ["login", "ana", "--password-file", "-", "--recovery-code", "-"]
    assert ready.fails(*stdin_twice, stdin="x", expect=2)["code"] == "usage"


@pytest.mark.adr("0006", "10")
def test_whose_key_needs_what(ready: Edge, phone: Authenticator) -> None:
    ready.user("ben", "viewer")
    before = ready.snapshot()
    for name in ("ana", "ben"):
        error = ready.fails("user", "totp", name, expect=3)
        assert error["code"] == "strong_authentication_required"
    assert ready.snapshot() == before
    ready.login("ana", "--recovery-code", str(ready.write("recovery", phone.recovery_codes[0])))
    other = Authenticator(ready.run("user", "totp", "ana"))
    assert other.secret != phone.secret
    ready.run("user", "totp", "ben")
    ready.login("ben")
    assert ready.fails("user", "totp", "ana", expect=3)["code"] == "not_allowed"
    old = ready.write("recovery", phone.recovery_codes[1])
    words = ["login", "ana", "--password-file", str(ready.home / "ana.password")]
    assert ready.fails(*words, "--recovery-code", old, expect=3)["code"] == "login_refused"
    assert ready.run(*words, "--totp", other.code())["assurance"] == "multi_factor"


@pytest.mark.adr("0006", "12")
@pytest.mark.alone("serve", "cycle", reason="a reset needs the state for itself")
def test_a_reset_is_the_way_back(ready: Edge, phone: Authenticator) -> None:
    ready.run("logout")
    new = ready.write("new.password", f"new {PASSWORD}\n")
    body = ready.run("user", "reset", "ana", "--password-file", new)
    assert (body["user"], body["state"], body["replayed"]) == ("ana", "active", False)
    old = ["login", "ana", "--password-file", str(ready.home / "ana.password")]
    assert ready.fails(*old, expect=3)["code"] == "login_refused"
    words = ["login", "ana", "--password-file", str(new)]
    assert ready.fails(*words, "--totp", phone.code(), expect=3)["code"] == "login_refused"
    assert ready.run(*words)["assurance"] == "single_factor"
    Authenticator(ready.run("user", "totp", "ana"))
    with sqlite3.connect(ready.state / "state.db") as connection:
        found = connection.execute("SELECT subject, version FROM identity_resets").fetchall()
    connection.close()
    assert found == [("user:ana", body["version"])]


@pytest.mark.alone("serve", "cycle", reason="a reset needs the state for itself")
def test_a_reset_ends_the_session_that_stands(ready: Edge) -> None:
    ready.run("user", "reset", "ana", "--password-file", ready.home / "ana.password")
    assert ready.fails("action", "list", expect=3)["code"] == "login_refused"
    nobody = ["user", "reset", "nobody", "--password-file", str(ready.home / "ana.password")]
    assert ready.fails(*nobody, expect=3)["code"] == "identity_not_found"


@pytest.mark.alone("serve", "cycle", reason="a reset needs the state for itself")
def test_a_forgotten_session_file_does_not_stop_a_reset(ready: Edge) -> None:
    ready.session_file().write_text("garbage")
    ready.run("user", "reset", "ana", "--password-file", ready.home / "ana.password")


def test_a_believed_clock_is_left_alone(ready: Edge) -> None:
    body = ready.run("clock", "trust")
    assert body["settled"] is False
    assert ready.run("status", expect=ready.at_rest[0])["clock"]["trusted"] is True
    ready.user("ben", "admin")
    ready.login("ben")
    assert ready.fails("clock", "trust", expect=3)["code"] == "not_allowed"
    ready.run("logout")
    assert ready.fails("clock", "trust", expect=3)["code"] == "login_required"


def test_the_text_for_people_shows_each_code_on_its_line(ready: Edge) -> None:
    lines = ready.run("user", "totp", "ana", json=False)["stdout"].splitlines()
    assert lines[0].startswith("otpauth://totp/default:ana?secret=")
    assert len([line for line in lines if line.startswith("  ") and line.count("-") == 3]) == 10
    assert lines[-1].startswith("shown this once")
