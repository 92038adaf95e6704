"""Users, agents, roles and sessions from the command line."""

import pytest

from tests.cli.conftest import PASSWORD, Edge


@pytest.mark.adr("0006", "5")
def test_a_wrong_name_and_a_wrong_password_look_alike(ready: Edge) -> None:
    file = ready.write("wrong", "not the password\n")
    words = ["--password-file", str(file)]
    assert ready.fails("login", "ana", *words, expect=3) == ready.fails(
        "login", "eve", *words, expect=3
    )


def test_a_session_ends_with_logout(ready: Edge) -> None:
    assert ready.session_file().stat().st_mode & 0o777 == 0o600
    ready.run("action", "list")
    ready.run("logout")
    assert not ready.session_file().exists()
    assert ready.fails("action", "list", expect=3)["code"] == "login_required"


def test_login_answers_with_what_the_contract_names(ready: Edge) -> None:
    body = ready.login()
    assert set(body) == {
        "session_file", "subject", "assurance", "authenticated_at_ms", "expires_at_ms",
    }  # fmt: skip
    assert (body["subject"], body["assurance"]) == ("user:ana", "single_factor")
    assert body["session_file"] == str(ready.session_file())


def test_users_and_agents_are_listed_with_their_roles(ready: Edge) -> None:
    ready.user("ben", "viewer")
    users = {row["name"]: row["role"] for row in ready.run("user", "list")["items"]}
    agents = {row["name"]: row["role"] for row in ready.run("agent", "list")["items"]}
    assert users == {"ana": "owner", "ben": "viewer"}
    assert agents == {"bot": "operator"}


def test_a_disabled_agent_and_a_rotated_token_are_refused(ready: Edge) -> None:
    old = ready.token_file().read_text()
    fresh = ready.run("agent", "rotate", "bot")["token"]
    assert ready.fails("action", "list", agent="bot", expect=3)["code"] == "login_refused"
    ready.write("bot.token", fresh)
    ready.run("action", "list", agent="bot")
    assert old.strip() != fresh
    ready.run("agent", "disable", "bot")
    assert ready.fails("action", "list", agent="bot", expect=3)["code"] == "login_refused"


@pytest.mark.adr("0005", "2")
@pytest.mark.alone("serve", reason="a daemon starts what is approved at once")
def test_what_a_disabled_agent_asked_for_is_not_started(ready: Edge) -> None:
    ready.propose(["/bin/true"], "--id", "one")
    ready.approve("one")
    ready.run("agent", "disable", "bot")
    body = ready.run("cycle")
    assert (body["dispatch"]["started"], body["dispatch"]["blocked"]) == (0, 1)
    assert ready.show("one")["execution"]["last_result_code"] == "policy_fence_changed"


@pytest.mark.adr("0006", "4")
def test_the_last_owner_stays(ready: Edge) -> None:
    assert ready.fails("user", "disable", "ana", expect=3)["code"] == "last_owner"
    for words in (["bind", "user:ana", "admin"], ["revoke", "user:ana"]):
        ready.fails("role", *words, expect=3)
    ready.user("ben", "owner")
    assert ready.run("user", "disable", "ana")
    assert ready.fails("action", "list", expect=3)["code"] == "login_refused"


@pytest.mark.adr("0006", "4")
def test_nobody_grants_above_their_own_role(ready: Edge) -> None:
    ready.user("ben", "admin")
    ready.login("ben")
    ready.fails("role", "bind", "agent:bot", "owner", expect=(2, 3))
    ready.fails("role", "bind", "user:ben", "owner", expect=3)
    file = ready.password_file("eve", PASSWORD)
    words = ["user", "add", "eve", "--role", "owner", "--password-file", str(file)]
    ready.fails(*words, expect=3)
    assert ready.run("role", "bind", "agent:bot", "viewer")
    plan = '{"schema_version":1,"action_type":"shell.exec","params":{"argv":["/bin/true"]}}'
    error = ready.fails("action", "propose", "-", stdin=plan, agent="bot", expect=3)
    assert error["code"] == "proposal_denied"


def test_a_viewer_reads_and_does_nothing_else(ready: Edge) -> None:
    ready.user("ben", "viewer")
    ready.propose(["/bin/true"], "--id", "one")
    ready.login("ben")
    assert ready.show("one")["effective_state"] == "pending"
    for words in (["approve", "one"], ["reject", "one", "--reason", "no"], ["cancel", "one"]):
        assert ready.fails("action", *words, expect=3)["code"] == "not_allowed"
    assert ready.fails("agent", "add", "x", "--role", "viewer", expect=3)["code"] == "not_allowed"
