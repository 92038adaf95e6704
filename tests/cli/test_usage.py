"""What a wrong call gets: exit 2 or 3, one JSON error, nothing changed, never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, WAY, Edge, own

HEX = "a" * 64

COMMANDS = (
    "init", "migrate", "verify", "status", "cycle", "demo", "login", "logout", "profile show",
    "action propose", "action list", "action show", "action approve", "action reject",
    "action dispatch", "action cancel", "action wait", "action logs", "recovery list",
    "recovery show", "recovery resolve", "task list", "task show", "handler list", "user add",
    "user list", "user disable", "agent add",
    "agent list", "agent rotate", "agent disable", "role bind", "role revoke",
)  # fmt: skip


# --- help and version --------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--version"], ["status", "--version"], ["--version", "x"]])
def test_the_version_is_told_and_nothing_else_is_done(edge: Edge, words: list[str]) -> None:
    done = edge.run(*words, json=False)
    name, version = done["stdout"].split()
    assert (name, done["stderr"]) == ("qinglong-edge", "")
    assert edge.run(*words) == {"version": version}
    assert not edge.state.exists()


def test_help_lists_every_command(edge: Edge) -> None:
    text = edge.run("-h", json=False)["stdout"]
    assert all(f"\n  {command} " in text for command in COMMANDS)
    assert list(edge.run("--help")) == ["help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(edge: Edge, command: str) -> None:
    text = edge.run(*command.split(), "-h", json=False)["stdout"]
    assert text.startswith(f"usage: qinglong-edge {command}")


def test_a_group_has_its_help(edge: Edge) -> None:
    text = edge.run("action", "-h", json=False)["stdout"]
    assert "action propose" in text
    assert "user add" not in text


# --- commands and options ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        [""],
        ["action"],
        ["action", "frobnicate"],
        ["action", "show", "a", "b"],
        ["status", "now"],
        ["--", "nothing"],
        ["-x", "status"],
        ["--frob", "status"],
        ["status", "--frob"],
        ["status", "--stat", "x"],
        ["status", "-j"],
        ["--json=yes", "status"],
        ["status", "--json=yes"],
        ["action", "approve", "a", "--hol"],
        ["action", "approve", "a", "--hold=1"],
        ["--state"],
        ["status", "--state"],
        ["--state", "", "status"],
        ["--state", "a", "status", "--state", "b"],
        ["--state", "a", "--state", "b", "status"],
        ["action", "show"],
        ["action", "reject", "a"],
        ["action", "wait", "a"],
        ["login"],
        ["user", "add", "bob"],
        ["role", "bind", "user:bob"],
        ["--session", "a", "--token-file", "b", "status"],
    ],
)
def test_a_malformed_call_is_a_usage_error(ready: Edge, words: list[str]) -> None:
    before = ready.snapshot()
    error = ready.fails(*words, expect=2)
    assert error["code"] in {"usage", "unknown_command", "invalid_value"}
    assert error["details"]["hint"]
    assert error["retryable"] is False
    assert ready.snapshot() == before


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["action", "show", "-x"], None),
        (["action", "show", "a b"], "id"),
        (["action", "show", "a" * 65], "id"),
        (["action", "show", "\u0661"], "id"),
        (["action", "show", ""], "id"),
        (["action", "show", "../../etc/passwd"], "id"),
        (["action", "approve", "a", "--action-digest", "abc"], "action_digest"),
        (["action", "approve", "a", "--action-digest", HEX.upper()], "action_digest"),
        (["action", "approve", "a", "--decision-id", "?"], "decision_id"),
        (["action", "reject", "a", "--reason", "too risky"], "reason"),
        (["action", "dispatch", "a", "--consumption-id", ""], "consumption_id"),
        (["action", "wait", "a", "--timeout", "soon"], "timeout_ms"),
        (["action", "wait", "a", "--timeout", "-1"], "timeout_ms"),
        (["action", "wait", "a", "--timeout", "1e9"], "timeout_ms"),
        (["action", "wait", "a", "--timeout", "99999999"], "timeout_ms"),
        (["action", "wait", "a", "--timeout", "nan"], "timeout_ms"),
        (["action", "list", "--limit", "0"], "limit"),
        (["action", "list", "--limit", "65"], "limit"),
        (["action", "list", "--limit", "1.5"], "limit"),
        (["action", "list", "--limit", "\u0661"], "limit"),
        (["action", "list", "--cursor", "x"], "cursor"),
        (["action", "list", "--cursor", "1." + "f" * 40], "cursor"),
        (["action", "list", "--state", "finished"], "state"),
        (["recovery", "list", "--queue", "lost"], "queue"),
        (["profile", "show", ""], "profile"),
        (["profile", "show", "laptop"], "profile"),
        (["user", "add", "bob", "--role", "king", "--password-file", "p"], "role"),
        (["user", "disable", "b\nb"], "name"),
        (["agent", "add", "b\x1b[2J", "--role", "viewer"], "name"),
        (["role", "bind", "bob", "viewer"], None),
        (["role", "bind", "worker:bob", "viewer"], None),
        (["role", "revoke", "user:"], "subject_id"),
        (["role", "revoke", "user:a b"], "subject"),
        (["action", "propose", "p", "--expires-in", "0"], "expires_in_ms"),
        (["action", "propose", "p", "--expires-in", "2d"], "expires_in_ms"),
        (["action", "propose", "p", "--expires-in", "1w"], "expires_in_ms"),
        (["action", "propose", "p", "--risk", "none"], "risk"),
        (["action", "propose", "p", "--id", "a/b"], "approval_request_id"),
        (["action", "propose", "p", "--repeats", "*"], "repeats"),
    ],
)
def test_a_malformed_value_is_a_usage_error(
    ready: Edge, words: list[str], field: str | None
) -> None:
    before = ready.snapshot()
    error = ready.fails(*words, expect=2)
    assert error["details"].get("field") == field
    assert ready.snapshot() == before


def test_words_that_are_not_utf8_are_refused_like_others(ready: Edge) -> None:
    for words in ([b"\xff"], [b"action", b"show", b"\xff"], [b"--\xff"], [b"status", b"--\xff"]):
        assert ready.fails(*words, expect=2)["code"] in {
            "usage",
            "unknown_command",
            "invalid_value",
        }


def test_a_wrong_call_does_not_repeat_what_may_be_a_secret(ready: Edge) -> None:
    for words in (
        ["login", "ana", "--password", "hunter2"],
        ["login", "ana", "--password=hunter2"],
        ["login", "ana", "hunter2"],
        ["status", "--json=hunter2"],
    ):
        ready.fails(*words, expect=2)
        assert "hunter2" not in ready.told().partition("stdout:")[2]


# --- global options ------------------------------------------------------------------------------


def test_global_options_stand_before_and_after_the_command(ready: Edge) -> None:
    state, session = str(ready.state), str(ready.session_file())
    env = {"QINGLONG_EDGE_STATE": None}
    for words in (
        ["--state", state, "--session", session, "action", "list"],
        ["action", "list", "--state", state, "--session", session],
        ["action", f"--state={state}", "list", f"--session={session}"],
        ["--state", state, "action", "list", "--state", "pending", "--limit", "1"],
        ["action", "list", "--state", "pending", f"--state={state}"],
    ):
        assert own(ready.run(*words, env=env)["items"]) == []


def test_json_may_stand_after_the_command(ready: Edge) -> None:
    done = ready.call("status", "--json")
    assert (done.returncode, json.loads(done.stdout)["health"]) == ready.at_rest


def test_an_option_wins_over_the_environment(ready: Edge) -> None:
    env = {"QINGLONG_EDGE_STATE": str(ready.home / "elsewhere")}
    assert ready.fails("status", env=env, expect=3)["code"] == "not_initialised"
    code, health = ready.at_rest
    body = ready.run("status", "--state", ready.state, env=env, expect=code)
    assert body["health"] == health
    assert not (ready.home / "elsewhere").exists()


def test_an_empty_variable_is_no_value(ready: Edge) -> None:
    env = {"QINGLONG_EDGE_SESSION": "", "QINGLONG_EDGE_TOKEN_FILE": "", "QINGLONG_EDGE_SOCKET": ""}
    assert own(ready.run("action", "list", env=env)["items"]) == []


def test_a_token_and_a_session_at_once_are_refused(ready: Edge) -> None:
    env = {"QINGLONG_EDGE_SESSION": str(ready.session_file())}
    assert ready.fails("status", env=env, agent="bot", expect=2)["code"] == "usage"
    env["QINGLONG_EDGE_TOKEN_FILE"] = str(ready.token_file())
    assert ready.fails("status", env=env, expect=2)["code"] == "usage"


@pytest.mark.parametrize("words", [["--json"], ["x", "--json"], ["--frob", "--json"]])
def test_json_is_honoured_where_the_call_cannot_be_parsed(edge: Edge, words: list[str]) -> None:
    done = edge.call(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"]


def test_after_two_dashes_json_is_a_word(edge: Edge) -> None:
    done = edge.call("status", "--", "--json")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: ")


def test_without_json_an_error_is_two_lines_for_people(edge: Edge) -> None:
    done = edge.call("action", "show", "a b")
    assert (done.returncode, done.stdout) == (2, b"")
    first, second = done.stderr.decode().splitlines()
    assert first.startswith("error: id: ")
    assert second.startswith("hint: qinglong-edge action show -h")


# --- streams -------------------------------------------------------------------------------------


def test_a_reader_that_has_gone_is_no_error(ready: Edge) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" | true', "sh", *ready.command("-h")],
        capture_output=True,
        env=ready.environment(),
        cwd=ready.home,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_hurt_the_state(ready: Edge, closed: str) -> None:
    done = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'"$@" {closed}',
            "sh",
            *ready.command("agent", "add", "x", "--role", "viewer"),
        ],
        capture_output=True,
        env=ready.environment(),
        cwd=ready.home,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert ready.run("verify")["ok"] is True


def test_an_answer_that_finds_no_room_is_a_failure(ready: Edge) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            ready.command("status", "--json"),
            stdout=full,
            stderr=subprocess.PIPE,
            env=ready.environment(),
            cwd=ready.home,
            check=False,
        )
    assert done.returncode == 4
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "output_failed"


def test_the_harness_names_the_program_that_is_judged(edge: Edge) -> None:
    word = edge.command()[-1]
    assert word == os.environ.get("QINGLONG_EDGE_TEST_PYZ", "qinglong_edge")
    assert isinstance(edge.state, Path)


def test_the_harness_knows_no_other_way(edge: Edge) -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", __file__]
    env = {**os.environ, WAY: "server"}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, check=False
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert WAY.encode() in done.stderr
