"""An unknown outcome is settled by its evidence or by a person, never by another run."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import PYZ, ROOT, Edge, Json, own
from tests.cli.test_runtime import killed_in_the_middle

TASK: Json = {
    "schema_version": 1,
    "task_id": "backup.nas",
    "name": "夜间备份",
    "argv": ["/bin/true"],
}
PUBLISH: Json = {"schema_version": 1, "action_type": "task.publish", "params": TASK}
BESIDE = pytest.mark.alone("serve", "cycle", reason="writes to the database beside its owner")
DIES = pytest.mark.alone("serve", "cycle", reason="its runtime dies, so it must be the only one")


def prove(edge: Edge, name: str = "ana") -> list[str]:
    """Log a user in with a second factor of their own; return the recovery codes that are left."""
    left: list[str]
    first, *left = edge.run("user", "totp", name)["recovery_codes"]
    assert edge.login(name, "--recovery-code", edge.write("code", first))
    return left


def unknown(ready: Edge) -> str:
    """Return the dispatch of a command that nobody knows the end of, past its probe."""
    dispatch_id = killed_in_the_middle(ready)
    ready.run("cycle")
    return dispatch_id


def resolve(
    dispatch_id: str, version: int, *more: str, decision: str = "confirm_failed"
) -> list[str]:
    words = ["recovery", "resolve", dispatch_id, "--decision", decision, "--reason", "looked"]
    return [*words, "--expected-version", str(version), *more]


def version_of(ready: Edge, dispatch_id: str) -> int:
    version: int = ready.run("recovery", "show", dispatch_id)["execution"]["version"]
    return version


@pytest.mark.scenario(134, 159)
@pytest.mark.adr("0033", "5.6")
def test_the_manual_queue_tells_what_was_looked_for(ready: Edge) -> None:
    dispatch_id = unknown(ready)
    (row,) = ready.run("recovery", "list", "--queue", "manual")["items"]
    assert (row["dispatch_id"], row["settled_by"]) == (dispatch_id, "person")
    assert (row["finding_count"], row["last_finding"]) == (1, "unsupported")
    assert row["last_result_code"] == "automatic_recovery_unsupported"
    assert 0 <= row["age_ms"] < 600_000
    assert ready.run("recovery", "list", "--queue", "due")["items"] == []
    assert own(ready.run("action", "list", "--state", "manual_required")["items"]) == ["killed"]
    text = ready.run("recovery", "show", dispatch_id, json=False)["stdout"]
    version = version_of(ready, dispatch_id)
    assert f"recovery resolve {dispatch_id} --expected-version {version}" in text
    assert ready.run("status", expect=20)["backlog"]["manual_required"] == 1


@pytest.mark.scenario(148, 168, 181)
@pytest.mark.adr("0033", "7.1")
@pytest.mark.parametrize(
    ("decision", "status"),
    [
        ("confirm_succeeded", "succeeded"),
        ("confirm_failed", "failed"),
        ("abandon_unknown", "blocked"),
    ],
)
def test_a_person_says_how_it_ended(ready: Edge, decision: str, status: str) -> None:
    dispatch_id = unknown(ready)
    version = version_of(ready, dispatch_id)
    prove(ready)
    words = resolve(dispatch_id, version, "--mutation-id", "man-1", decision=decision)
    done = ready.run(*words, "--evidence", "ab" * 32)
    assert (done["status"], done["execution_status"]) == ("resolved", status)
    assert done["execution_version"] == version + 1
    settled = done["resolution"]
    assert (settled["source"], settled["decision"]) == ("human", decision)
    assert (settled["resolved_by"], settled["reason_code"]) == ("user:ana", "looked")
    assert (settled["evidence_digest"], settled["unprobed"]) == ("ab" * 32, False)
    shown = ready.show("killed")
    assert (shown["effective_state"], shown["resolution"]) == (status, settled)
    assert shown["recovery"]["status"] == "resolved"
    assert ready.run("recovery", "list", "--queue", "manual")["items"] == []
    ready.run("cycle")
    assert (ready.home / "marks").read_text() == "ran\n"
    assert ready.run("verify") == {"ok": True, "problems": []}


@pytest.mark.scenario(147, 178)
def test_the_first_word_counts_and_its_repeat_is_a_replay(ready: Edge) -> None:
    dispatch_id = unknown(ready)
    version = version_of(ready, dispatch_id)
    prove(ready)
    words = resolve(dispatch_id, version, "--mutation-id", "man-1")
    first = ready.run(*words)
    assert ready.run(*words) == {**first, "status": "replayed"}
    for late in (
        resolve(dispatch_id, version, "--mutation-id", "man-2"),
        resolve(dispatch_id, version, "--mutation-id", "man-1", decision="confirm_succeeded"),
        resolve(dispatch_id, version + 1, "--mutation-id", "man-1"),
    ):
        error = ready.fails(*late, expect=3)
        assert error["code"] == "already_terminal"
        winner = error["details"]
        assert (winner["source"], winner["decision"]) == ("human", "confirm_failed")
        assert (winner["execution_status"], winner["dispatch_id"]) == ("failed", dispatch_id)


@pytest.mark.adr("0009", "5")
@pytest.mark.scenario(169, 170, 172, 173, 183)
@pytest.mark.adr("0033", "7.1")
def test_strangers_and_weak_proof_are_refused_alike(ready: Edge) -> None:
    """Whoever may not settle learns nothing: a dispatch that exists and one that does not."""
    dispatch_id = unknown(ready)
    version = version_of(ready, dispatch_id)
    ready.user("eve", "viewer")
    ready.user("olaf", "operator")
    cases: list[tuple[str | None, str]] = [("bot", "human_required")]
    cases += [(None, "strong_authentication_required")]
    for agent, code in cases:
        for name in (dispatch_id, "dsp-none"):
            assert ready.fails(*resolve(name, version), expect=3, agent=agent)["code"] == code
    for name in ("eve", "olaf"):
        ready.login(name)
        prove(ready, name)
        known = ready.fails(*resolve(dispatch_id, version), expect=3)
        assert known == ready.fails(*resolve("dsp-none", version), expect=3)
        assert known["code"] == "not_allowed"
    ready.login()
    prove(ready)
    missing = ready.fails(*resolve("dsp-none", version), expect=3)
    assert missing["code"] == "dispatch_not_found"
    assert ready.show("killed")["effective_state"] == "manual_required"


@pytest.mark.scenario(180)
def test_a_word_that_was_given_is_no_right_to_repeat_it(ready: Edge) -> None:
    dispatch_id = unknown(ready)
    words = resolve(dispatch_id, version_of(ready, dispatch_id), "--mutation-id", "man-1")
    ready.user("eva", "owner")
    codes = prove(ready)
    assert ready.run(*words)["status"] == "resolved"
    ready.login("eva")
    ready.run("role", "bind", "user:ana", "viewer")
    ready.login("ana", "--recovery-code", ready.write("second", codes[0]))
    assert ready.fails(*words, expect=3)["code"] == "not_allowed"


@pytest.mark.scenario(152)
def test_a_version_that_was_not_looked_at_settles_nothing(ready: Edge) -> None:
    dispatch_id = unknown(ready)
    recovery = ready.run("recovery", "show", dispatch_id)
    version, seen = recovery["execution"]["version"], recovery["recovery"]["version"]
    prove(ready)
    for words in (
        resolve(dispatch_id, version - 1),
        resolve(dispatch_id, version, "--expected-recovery-version", str(seen + 1)),
    ):
        error = ready.fails(*words, expect=3)
        assert error["code"] == "recovery_fence_rejected"
        assert error["details"]["execution_version"] == version
        assert error["details"]["recovery_version"] == seen
    words = resolve(dispatch_id, version, "--expected-recovery-version", str(seen))
    assert ready.run(*words)["status"] == "resolved"


@pytest.mark.scenario(148)
@DIES
def test_what_may_still_run_is_not_settled(ready: Edge) -> None:
    """The lease of the dead runtime still runs: until a cycle takes over, nobody knows."""
    dispatch_id = killed_in_the_middle(ready)
    version = version_of(ready, dispatch_id)
    prove(ready)
    assert ready.fails(*resolve(dispatch_id, version), expect=3)["code"] == "execution_active"


@pytest.mark.adr("0033", "7.3")
def test_a_repeat_and_what_it_repeats_name_each_other(ready: Edge) -> None:
    dispatch_id = unknown(ready)
    argv = ready.show("killed")["preview"]["argv"]
    ready.propose(argv, "--id", "again", "--repeats", dispatch_id)
    shown = ready.show("again")
    assert shown["repeats"] == shown["preview"]["repeats"] == dispatch_id
    lines = ready.run("action", "show", "again", json=False)["stdout"].splitlines()
    assert lines[1].startswith(f"WARNING: repeats {dispatch_id}")
    assert ready.show("killed")["repeated_by"] == ["again"]
    assert ready.run("recovery", "show", dispatch_id)["repeated_by"] == ["again"]
    prove(ready)
    ready.run(*resolve(dispatch_id, version_of(ready, dispatch_id), decision="abandon_unknown"))
    assert ready.propose(argv, "--id", "third", "--repeats", dispatch_id)["risk"] == "high"


# --- actions on this database ------------------------------------------------------------------


@pytest.fixture
def tasks(edge: Edge) -> Edge:
    """Return a state where tasks are published and run; `pub` is approved."""
    edge.init(enable="task.publish,run.create")
    edge.login()
    edge.agent()
    edge.propose(PUBLISH, "--id", "pub")
    edge.approve("pub")
    return edge


def die_behind_effect(edge: Edge) -> None:
    """Carry what is due in a process that is killed between an effect and its result."""
    program = os.environ.get(PYZ) or str(ROOT)
    start = "import sys; sys.path.insert(0, sys.argv.pop(1)); from qinglong_edge.cli.demo import"
    command = [f"{start} die_behind_effect; die_behind_effect()", program, str(edge.state)]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", *command], check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_task_is_published_and_run(tasks: Edge) -> None:
    assert tasks.run("cycle")["dispatch"]["succeeded"] == 1
    (row,) = tasks.run("task", "list")["items"]
    assert (row["task_id"], row["task_revision"], row["task_name"]) == (
        "backup.nas",
        "r1",
        "夜间备份",
    )
    assert tasks.run("task", "show", "backup.nas")["task"]["argv"] == ["/bin/true"]
    run: Json = {
        "schema_version": 1,
        "action_type": "run.create",
        "params": {"task_id": "backup.nas"},
    }
    asked = tasks.propose(run, "--id", "run")
    assert asked["preview"]["task_revision"] == "r1"
    tasks.propose(PUBLISH, "--id", "next")
    tasks.approve("next")
    tasks.run("cycle")
    assert tasks.propose(run, "--id", "run") == {**asked, "replayed": True}
    tasks.approve("run")
    assert tasks.run("cycle")["dispatch"]["succeeded"] == 1
    assert tasks.show("run")["execution"]["last_result_code"] == "approved_run_created"
    assert tasks.run("task", "show", "backup.nas", "--revision", "r1")["task_revision"] == "r1"
    assert tasks.run("task", "show", "backup.nas")["task_revision"] == "r2"
    assert tasks.fails("task", "show", "backup.nas", "--revision", "r9", expect=3)
    wrong: Json = {**run, "params": {"task_id": "nothing"}}
    words = ("action", "propose", "-")
    error = tasks.fails(*words, stdin=tasks.write("w", wrong).read_text(), agent="bot", expect=3)
    assert error["code"] == "task_not_found"
    assert tasks.run("verify") == {"ok": True, "problems": []}


@pytest.mark.scenario(128, 157, 200, 201)
@pytest.mark.adr("0033", "4.3")
def test_evidence_settles_what_a_killed_runtime_left(tasks: Edge) -> None:
    die_behind_effect(tasks)
    assert tasks.show("pub")["effective_state"] == "executing"
    phase = tasks.run("cycle")["recovery"]
    assert (phase["claimed"], phase["verified_succeeded"]) == (1, 1)
    shown = tasks.show("pub")
    assert shown["effective_state"] == "succeeded"
    assert shown["resolution"]["source"] == "automatic_evidence"
    assert shown["resolution"]["evidence_digest"] == shown["recovery"]["last_evidence_digest"]
    assert [row["task_revision"] for row in tasks.run("task", "list")["items"]] == ["r1"]
    assert tasks.run("recovery", "show", "pub")["settled_by"] == "automatic_evidence"


@BESIDE
@pytest.mark.scenario(193, 194)
@pytest.mark.adr("0033", "3.1")
def test_evidence_that_was_touched_settles_nothing(tasks: Edge) -> None:
    die_behind_effect(tasks)
    with closing(sqlite3.connect(tasks.state / "state.db")) as connection:
        connection.execute("DROP TRIGGER action_receipts_are_immutable")
        said = "CAST(replace(body, 'succeeded', 'failed') AS BLOB)"
        connection.execute(f"UPDATE action_receipts SET body = {said}")
        connection.commit()
    tasks.run("cycle")
    shown = tasks.show("pub")
    assert (shown["effective_state"], shown["resolution"]) == ("manual_required", None)
    assert shown["recovery"]["last_finding"] == "conflict"
    prove(tasks)
    dispatch_id = shown["dispatch"]["dispatch_id"]
    words = resolve(dispatch_id, shown["execution"]["version"], decision="confirm_succeeded")
    assert tasks.run(*words)["execution_status"] == "succeeded"


@pytest.mark.parametrize(
    "words",
    [
        ["recovery", "resolve", "dsp"],
        resolve("dsp", 1, decision="retry"),
        resolve("dsp", 1, decision="reset_to_pending"),
        resolve("dsp", 1, "--evidence", "xyz"),
        resolve("dsp", 1, "--mutation-id", "?"),
        [*resolve("dsp", 1)[:-1], "-1"],
        [*resolve("dsp", 1)[:-1], "2147483648"],
    ],
)
@pytest.mark.scenario(156)
def test_what_is_no_word_is_refused_before_anything_is_opened(edge: Edge, words: list[str]) -> None:
    assert edge.fails(*words, expect=2)["details"]
    assert not Path(edge.state).exists()
