"""The `action` commands, from proposal to result, as a script sees them."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Edge, own, shell_plan

HEX = "0" * 64
APPROVAL_KEYS = {
    "approval_request_id", "state", "version", "action_type", "action_digest", "preview_digest",
    "preview", "risk", "requested_at_ms", "expires_at_ms", "replayed",
}  # fmt: skip


def test_a_proposal_answers_with_everything_a_person_needs(ready: Edge) -> None:
    body = ready.propose(["/bin/echo", "hi"], "--id", "one", "--expires-in", "10m")
    assert set(body) == APPROVAL_KEYS
    assert (body["approval_request_id"], body["state"], body["version"]) == ("one", "pending", 1)
    assert body["expires_at_ms"] - body["requested_at_ms"] == 600_000
    assert body["preview"]["argv"] == ["/bin/echo", "hi"]
    assert (body["risk"], body["replayed"]) == ("medium", False)


@pytest.mark.scenario(29, 30, 45, 47, 57)
@pytest.mark.adr("0003", "4")
def test_every_step_replays_by_its_id_and_refuses_drift(ready: Edge) -> None:
    first = ready.propose(["/bin/true"], "--id", "one")
    again = ready.propose(["/bin/true"], "--id", "one")
    assert again == {**first, "replayed": True}
    other = json.dumps(shell_plan("/bin/false"))
    words = ["action", "propose", "-", "--id", "one"]
    error = ready.fails(*words, stdin=other, agent="bot", expect=3)
    assert error["code"] == "approval_mutation_conflict"
    made = ready.approve("one", "--decision-id", "d1")
    assert (made["state"], made["version"], made["replayed"]) == ("consumed", 3, False)
    assert ready.approve("one", "--decision-id", "d1") == {**made, "replayed": True}
    assert ready.propose(["/bin/true"], "--id", "one")["state"] == "consumed"
    ready.run("cycle")
    assert ready.approve("one", "--decision-id", "d1")["dispatch_id"] == made["dispatch_id"]
    assert ready.fails("action", "approve", "one", expect=3)["code"] == "approval_version_conflict"


def test_a_wrong_digest_is_not_approved(ready: Edge) -> None:
    shown = ready.propose(["/bin/true"], "--id", "one")
    words = ["action", "approve", "one", "--action-digest"]
    assert ready.fails(*words, HEX, expect=3)["code"] == "action_digest_mismatch"
    assert ready.show("one")["effective_state"] == "pending"
    assert ready.run(*words, shown["action_digest"])["state"] == "consumed"


def test_a_held_approval_waits_for_its_dispatch(ready: Edge) -> None:
    ready.propose(["/bin/true"], "--id", "one")
    held = ready.approve("one", "--hold")
    assert (held["state"], held["version"], held["dispatch_id"]) == ("approved", 2, None)
    ready.run("cycle")
    assert ready.show("one")["effective_state"] == "approved"
    used = ready.run("action", "dispatch", "one", "--consumption-id", "c1")
    again = ready.run("action", "dispatch", "one", "--consumption-id", "c1")
    assert used["state"] == "consumed"
    assert again == {**used, "replayed": True}
    ready.run("cycle")
    assert ready.show(used["dispatch_id"])["effective_state"] == "succeeded"


@pytest.mark.scenario(40)
def test_a_rejected_request_is_never_dispatched(ready: Edge) -> None:
    ready.propose(["/bin/true"], "--id", "one")
    body = ready.run("action", "reject", "one", "--reason", "not_today")
    assert (body["state"], body["version"], body["dispatch_id"]) == ("rejected", 2, None)
    ready.fails("action", "approve", "one", expect=3)
    ready.fails("action", "dispatch", "one", expect=3)
    shown = ready.show("one")
    assert shown["approval"]["decision_reason_code"] == "not_today"
    assert shown["dispatch"] is None


@pytest.mark.parametrize("step", ["pending", "approved", "due"])
@pytest.mark.alone("serve", reason="a daemon starts what is approved at once")
def test_an_action_is_withdrawn_before_its_barrier(ready: Edge, step: str) -> None:
    ready.propose(["/bin/true"], "--id", "one")
    if step != "pending":
        ready.approve("one", *(["--hold"] if step == "approved" else []))
    assert ready.run("action", "cancel", "one")["state"] == "cancelled"
    ready.run("cycle")
    shown = ready.show("one")
    if step == "due":
        assert shown["effective_state"] == "blocked"
        assert shown["execution"]["last_result_code"] == "cancelled_before_start"
    else:
        assert shown["effective_state"] == "cancelled"


def test_what_has_ended_is_not_withdrawn(ready: Edge) -> None:
    ready.propose(["/bin/true"], "--id", "one")
    ready.approve("one")
    ready.run("cycle")
    error = ready.fails("action", "cancel", "one", expect=3)
    assert error["code"] == "already_terminal"
    assert error["details"]["approval_request_id"] == "one"


@pytest.mark.adr("0006", "2")
def test_users_do_not_propose_and_agents_do_not_decide(ready: Edge) -> None:
    plan = json.dumps(shell_plan())
    assert ready.fails("action", "propose", "-", stdin=plan, expect=3)["code"] == "proposal_denied"
    ready.propose(["/bin/true"], "--id", "one")
    for words in (["approve", "one"], ["reject", "one", "--reason", "no"], ["dispatch", "one"]):
        assert ready.fails("action", *words, agent="bot", expect=3)["code"] == "not_allowed"
    assert ready.show("one")["effective_state"] == "pending"


def test_an_agent_sees_and_withdraws_only_its_own(ready: Edge) -> None:
    ready.agent("other")
    ready.propose(["/bin/true"], "--id", "one")
    assert ready.run("action", "list", agent="other")["items"] == []
    known = ready.fails("action", "show", "one", agent="other", expect=3)
    unknown = ready.fails("action", "show", "none", agent="other", expect=3)
    assert known == unknown
    assert ready.fails("action", "cancel", "one", agent="other", expect=3) == ready.fails(
        "action", "cancel", "none", agent="other", expect=3
    )
    assert ready.run("action", "cancel", "one", agent="bot")["state"] == "cancelled"


@pytest.mark.adr("0006", "6")
@pytest.mark.parametrize("risk", ["high", "critical"])
def test_high_risk_needs_a_second_factor(ready: Edge, risk: str) -> None:
    ready.propose(["/bin/true"], "--id", "one", "--risk", risk)
    before = ready.show("one")
    error = ready.fails("action", "approve", "one", expect=3)
    assert error["code"] == "strong_authentication_required"
    assert ready.show("one") == before
    assert ready.run("action", "reject", "one", "--reason", "no")["state"] == "rejected"


@pytest.mark.alone("serve", reason="a daemon starts what is approved at once")
def test_lists_page_through_every_queue(ready: Edge) -> None:
    for number in range(5):
        ready.propose(["/bin/true"], "--id", f"a{number}")
    for number in range(3):
        ready.approve(f"a{number}", *(["--hold"] if number == 0 else []))
    seen, cursor = [], None
    while True:
        more: list[str] = [] if cursor is None else ["--cursor", cursor]
        page = ready.run("action", "list", "--limit", "2", *more)
        seen += own(page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ["a4", "a3", "a2", "a1", "a0"]

    def queue(name: str) -> list[str]:
        return ready.actions("--state", name)

    assert queue("pending") == ["a3", "a4"]
    assert queue("approved") == ["a0"]
    assert queue("due") == ["a1", "a2"]
    assert queue("executing") == queue("manual_required") == []


def test_the_output_of_an_action_is_kept_outside_the_database(ready: Edge) -> None:
    secret = "a-word-that-must-not-be-stored"
    ready.propose(["/bin/sh", "-c", f"echo {secret} | tr a-z A-Z"], "--id", "one")
    ready.fails("action", "logs", "one", expect=3)
    ready.approve("one")
    ready.run("cycle")
    assert ready.run("action", "logs", "one")["text"] == secret.upper() + "\n"
    stored = b"".join(
        data for name, data in ready.snapshot().items() if name.startswith("state.db")
    )
    assert secret.encode() in stored  # the plan holds it, by the person's own approval
    assert secret.upper().encode() not in stored


@pytest.mark.alone("serve", reason="a daemon starts what is approved at once")
def test_waiting_ends_with_the_action_or_with_the_time(ready: Edge) -> None:
    ready.propose(["/bin/true"], "--id", "one")
    body = ready.run("action", "wait", "one", "--timeout", "0.1", expect=20)
    assert body["effective_state"] == "pending"
    ready.approve("one")
    body = ready.run("action", "wait", "one", "--timeout", "0.1", expect=10)
    assert body["effective_state"] == "due"
    ready.run("cycle")
    assert ready.run("action", "wait", "one", "--timeout", "5")["effective_state"] == "succeeded"


def test_too_many_open_requests_are_refused(ready: Edge) -> None:
    for number in range(32):
        ready.propose(["/bin/true"], "--id", f"a{number}")
    words = ["action", "propose", "-", "--id", "more"]
    plan = json.dumps(shell_plan("/bin/true"))
    assert ready.fails(*words, stdin=plan, agent="bot", expect=3)["code"] == "too_many_pending"
    ready.run("action", "cancel", "a0")
    assert ready.propose(["/bin/true"], "--id", "more")["state"] == "pending"


@pytest.mark.parametrize(
    ("action_type", "code"),
    [("run.cancel", "handler_not_available"), ("no.such.type", "unknown_action_type")],
)
def test_what_is_not_carried_or_not_known_is_not_proposed(
    ready: Edge, action_type: str, code: str
) -> None:
    plan: dict[str, Any] = {**shell_plan(), "action_type": action_type}
    before = ready.snapshot()
    words = ["action", "propose", "-"]
    error = ready.fails(*words, stdin=json.dumps(plan), agent="bot", expect=(2, 3))
    assert error["code"] == code
    assert ready.snapshot() == before


@pytest.mark.adr("0036", "6.1")
def test_what_is_not_enabled_is_not_reachable(edge: Edge) -> None:
    edge.init(enable=None)
    edge.login()
    edge.agent()
    words = ["action", "propose", "-"]
    error = edge.fails(*words, stdin=json.dumps(shell_plan()), agent="bot", expect=3)
    assert error["code"] == "handler_not_enabled"
