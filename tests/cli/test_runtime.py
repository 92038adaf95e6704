"""`cycle`, `status`, `verify`, `recovery` and `demo`: what the runtime does and says."""

import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Edge

PHASE_ENDS = {"complete", "page_limit", "cursor_stalled", "stopped"}


def approved(ready: Edge, name: str, *argv: str) -> str:
    """Propose and approve a shell action; return its dispatch id."""
    ready.propose([*argv], "--id", name)
    return str(ready.approve(name)["dispatch_id"])


def until(path: Path) -> None:
    """Wait until a file is there and not empty."""
    for _ in range(1000):
        if path.exists() and path.stat().st_size > 1:
            return
        time.sleep(0.01)
    pytest.fail(f"{path} never came")


def killed_in_the_middle(ready: Edge) -> str:
    """Start an action, kill its runtime and then the action; return the dispatch id."""
    pid = ready.home / "pid"
    script = f"echo ran >> {ready.home}/marks; echo $$ > {pid}; exec sleep 60"
    dispatch_id = approved(ready, "killed", "/bin/sh", "-c", script)
    with ready.start("cycle") as runtime:
        until(pid)
        runtime.kill()
    os.killpg(int(pid.read_text()), signal.SIGKILL)
    return dispatch_id


@pytest.mark.alone("serve", reason="counts what one cycle did")
def test_a_cycle_reports_its_phases(ready: Edge) -> None:
    approved(ready, "one", "/bin/true")
    approved(ready, "two", "/bin/false")
    body = ready.run("cycle")
    assert set(body) == {"recovery", "dispatch", "runs", "retention"}
    for phase in body.values():
        assert phase["stop_reason"] in PHASE_ENDS
        assert phase["remaining"] is False
        assert phase["scanned"] >= 0
    assert body["dispatch"]["started"] == 2
    assert (body["dispatch"]["succeeded"], body["dispatch"]["failed"]) == (1, 1)
    assert ready.show("two")["execution"]["last_result_code"] == "exit_1"


@pytest.mark.scenario(222)
@pytest.mark.alone("serve", reason="counts what one cycle did")
def test_an_edge_cycle_takes_one_page_of_eight(ready: Edge) -> None:
    for number in range(9):
        approved(ready, f"a{number}", "/bin/true")
    body = ready.run("cycle", expect=10)
    assert body["dispatch"]["succeeded"] == 8
    assert body["dispatch"]["stop_reason"] == "page_limit"
    assert ready.run("cycle")["dispatch"]["succeeded"] == 1
    assert ready.run("cycle")["dispatch"]["scanned"] == 0


@pytest.mark.scenario(82, 128)
@pytest.mark.adr("0033", "1.3")
@pytest.mark.adr("0033", "2.2")
def test_an_action_that_was_killed_is_not_run_again(ready: Edge) -> None:
    dispatch_id = killed_in_the_middle(ready)
    for _ in range(3):
        ready.run("cycle")
    assert (ready.home / "marks").read_text() == "ran\n"
    shown = ready.show("killed")
    assert shown["effective_state"] == "manual_required"
    assert shown["execution"]["status"] == "executing"
    assert shown["recovery"]["status"] == "manual_required"
    status = ready.run("status", expect=20)
    assert (status["health"], status["backlog"]["manual_required"]) == ("attention", 1)
    listed = ready.run("recovery", "list", "--queue", "manual")["items"]
    assert [row["dispatch_id"] for row in listed] == [dispatch_id]
    detail = ready.run("recovery", "show", dispatch_id)
    assert detail["settled_by"] == "person"
    assert ready.run("action", "wait", "killed", "--timeout", "0.1", expect=20)
    assert ready.fails("action", "cancel", "killed", expect=3)["code"] == "already_started"


@pytest.mark.adr("0003", "5")
@pytest.mark.adr("0033", "7.3")
def test_repeating_an_unknown_action_must_be_said(ready: Edge) -> None:
    dispatch_id = killed_in_the_middle(ready)
    ready.run("cycle")
    plan = json.dumps(
        {
            "schema_version": 1,
            "action_type": "shell.exec",
            "params": {"argv": ready.show("killed")["preview"]["argv"]},
        }
    )
    words = ["action", "propose", "-", "--id", "again"]
    assert ready.fails(*words, stdin=plan, agent="bot", expect=3)["code"] == "repeats_required"
    low = [*words, "--repeats", dispatch_id, "--risk", "medium"]
    assert ready.fails(*low, stdin=plan, agent="bot", expect=2)["code"] == "risk_too_low"
    wrong = [*words, "--repeats", "nothing"]
    assert ready.fails(*wrong, stdin=plan, agent="bot", expect=3)["code"] == "repeats_mismatch"
    body = ready.run(*words, "--repeats", dispatch_id, stdin=plan, agent="bot")
    assert body["risk"] == "high"
    assert body["preview"]["repeats"] == dispatch_id
    shown = ready.run("action", "show", "again", json=False)["stdout"]
    assert dispatch_id in shown.partition("shell.exec")[0]
    assert ready.show("again")["approval"]["repeats"] == dispatch_id


@pytest.mark.alone("serve", reason="signals the cycle that runs its actions")
def test_sigterm_lets_the_running_action_end_and_puts_the_rest_back(ready: Edge) -> None:
    pid = ready.home / "pid"
    approved(ready, "a", "/bin/sh", "-c", f"echo $$ > {pid}; sleep 0.5")
    approved(ready, "b", "/bin/true")
    with ready.start("cycle") as runtime:
        until(pid)
        runtime.terminate()
        out, _ = runtime.communicate(timeout=30)
    body = json.loads(out)
    assert runtime.returncode == 10
    assert (body["dispatch"]["succeeded"], body["dispatch"]["put_back"]) == (1, 1)
    assert body["dispatch"]["stop_reason"] == "stopped"
    assert ready.show("b")["execution"]["attempt_count"] == 0
    ready.run("cycle")
    assert ready.show("b")["effective_state"] == "succeeded"


@pytest.mark.alone("serve", reason="migrate needs the state for itself")
def test_the_owner_uid_needs_no_session_for_the_machine_commands(ready: Edge) -> None:
    ready.run("logout")
    ready.run("status", expect=ready.at_rest[0])
    for command in ("cycle", "verify", "migrate"):
        ready.run(command)
    for words in (
        ["action", "list"],
        ["recovery", "list"],
        ["user", "list"],
        ["handler", "list"],
    ):
        assert ready.fails(*words, expect=3)["code"] == "login_required"
    assert ready.fails("cycle", agent="bot", expect=3)["code"] == "not_allowed"


@pytest.mark.alone("serve", "cycle", reason="counts what waits and what runs")
def test_status_counts_what_waits(ready: Edge) -> None:
    assert ready.run("status")["health"] == "ok"
    ready.propose(["/bin/true"], "--id", "one")
    body = ready.run("status")
    assert (body["health"], body["backlog"]["pending"]) == ("ok", 1)
    ready.approve("one")
    body = ready.run("status", expect=10)
    assert (body["health"], body["backlog"]["due"]) == ("converging", 1)
    assert body["admission"] == {"open": True, "reasons": []}
    assert body["storage"]["journal"] in {"wal", "truncate"}


@pytest.mark.adr("0003", "2")
@pytest.mark.alone("serve", "cycle", reason="writes to the database beside its owner")
def test_verify_names_what_cannot_be_believed(ready: Edge) -> None:
    approved(ready, "one", "/bin/true")
    assert ready.run("verify") == {"ok": True, "problems": []}
    connection = sqlite3.connect(ready.state / "state.db")
    connection.execute("DROP TRIGGER plans_are_immutable")
    connection.execute("UPDATE plans SET body = CAST(replace(body, 'true', 'evil') AS BLOB)")
    connection.commit()
    connection.close()
    body = ready.run("verify", expect=20)
    assert body["ok"] is False
    assert [problem["problem"] for problem in body["problems"]] == ["plan_damaged"]
    done = ready.run("cycle")
    assert (done["dispatch"]["started"], done["dispatch"]["blocked"]) == (0, 1)


@pytest.mark.alone("serve", "cycle", reason="writes to the database beside its owner")
def test_verify_and_lists_count_an_identity_that_cannot_be_believed(ready: Edge) -> None:
    ready.agent("other")
    connection = sqlite3.connect(ready.state / "state.db")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute("UPDATE identities SET state = 'odd' WHERE subject = 'agent:other'")
    connection.commit()
    connection.close()
    body = ready.run("verify", expect=20)
    assert {"row": None, "problem": "agent_damaged"} in body["problems"]
    listed = ready.run("agent", "list")
    assert [row["name"] for row in listed["items"]] == ["bot"]
    assert listed["damaged"] == 1


@pytest.mark.adr("0004", "1")
def test_what_never_goes_through_a_socket_waits_for_the_owner_and_gives_up(ready: Edge) -> None:
    pid = ready.home / "pid"
    approved(ready, "slow", "/bin/sh", "-c", f"echo $$ > {pid}; sleep 7")
    with ready.start("cycle") as runtime:
        until(pid)
        with ready.start("cycle") as later:  # waits for that one, longer than for the state
            error = ready.fails("migrate", expect=4)
            assert (error["code"], error["retryable"]) == ("state_busy", True)
            assert ready.run("status", expect=10)["backlog"]["executing"] == 1
            assert (runtime.wait(timeout=30), later.wait(timeout=30)) == (0, 0)
    assert ready.run("status")["health"] == "ok"


def test_profiles_are_shown_without_a_state(edge: Edge) -> None:
    small, large = edge.run("profile", "show", "edge"), edge.run("profile", "show", "standalone")
    assert small["dispatch"] == {"page_size": 8, "max_pages": 1}
    assert large["dispatch"] == {"page_size": 32, "max_pages": 4}
    assert small["interval_ms"] > large["interval_ms"]
    assert edge.fails("profile", "show", "worker", expect=3)["code"] == "profile_not_local"
    assert not edge.state.exists()


def test_the_demo_tells_its_story_and_leaves_nothing(edge: Edge) -> None:
    body = edge.run("demo", env={"TMPDIR": str(edge.home)})
    story = "\n".join(body["lines"])
    assert len(body["lines"]) < 40
    assert "the file says: hello" in story
    assert "manual_required" in story
    assert "its receipt proves it" in story
    assert "on the word of ana" in story
    assert list(edge.home.iterdir()) == []
    text = edge.run("demo", json=False)["stdout"]
    assert "Nothing ran twice." in text
