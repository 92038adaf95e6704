"""The daemon from outside: one owner, a socket that answers, an end that is bounded."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import PATIENCE_S, Edge, serving, shell_plan, until

pytestmark = pytest.mark.alone("serve", "cycle", reason="runs daemons and cycles of its own")
NOBODY = 65534


def events_of(edge: Edge) -> list[dict[str, object]]:
    return [json.loads(line) for line in edge.events.read_text().splitlines()]


def slow(edge: Edge, name: str, seconds: float) -> str:
    """Propose and approve an action that marks its start and its end; return its dispatch id."""
    marks = edge.home / "marks"
    script = f"echo {name} >> {marks}; sleep {seconds}; echo {name}-end >> {marks}"
    edge.propose(["/bin/sh", "-c", script], "--id", name)
    return str(edge.approve(name)["dispatch_id"])


def marks(edge: Edge) -> list[str]:
    path = edge.home / "marks"
    return path.read_text().split() if path.exists() else []


@pytest.mark.adr("0008", "2")
def test_an_approved_action_starts_soon_and_nobody_waits_for_it(ready: Edge) -> None:
    with serving(ready):
        slow(ready, "one", 2.5)
        until(lambda: marks(ready) == ["one"])
        began = time.monotonic()
        assert ready.run("status", expect=10)["backlog"]["executing"] == 1
        ready.propose(["/bin/true"], "--id", "two")
        assert ready.approve("two")["state"] == "consumed"
        assert marks(ready) == ["one"], "the commands took as long as the action"
        assert time.monotonic() - began < 2.5
        body = ready.run("action", "wait", "two", "--timeout", "20")
        assert body["effective_state"] == "succeeded"
        assert ready.show("one")["effective_state"] == "succeeded"
    assert marks(ready) == ["one", "one-end"]
    names = [event["event"] for event in events_of(ready)]
    assert (names[0], names[-1]) == ("listening", "stopped")
    assert not (ready.state / "control.sock").exists()
    assert (ready.state / "lock").read_bytes() == b""
    assert ready.run("status")["health"] == "ok"


def test_a_cycle_is_joined_through_the_socket(ready: Edge) -> None:
    with serving(ready):
        ready.propose(["/bin/true"], "--id", "one")
        ready.approve("one", "--hold")
        assert ready.run("cycle")["dispatch"]["scanned"] == 0
        assert ready.fails("cycle", agent="bot", expect=3)["code"] == "not_allowed"


def test_a_second_serve_is_refused(ready: Edge) -> None:
    with serving(ready):
        assert ready.fails("serve", expect=3)["code"] == "already_owned"
        assert ready.fails("migrate", expect=4)["code"] == "state_busy"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.adr("0008", "3")
def test_a_stop_during_a_long_action_is_bounded_and_nothing_runs_twice(
    ready: Edge, number: signal.Signals
) -> None:
    with serving(ready, expect=4) as daemon:
        slow(ready, "one", 60)
        until(lambda: marks(ready) == ["one"])
        began = time.monotonic()
        daemon.send_signal(number)
        time.sleep(0.2)
        daemon.send_signal(number)  # a second one does not kill the drain
        assert daemon.wait(timeout=PATIENCE_S) == 4
        assert 4 < time.monotonic() - began < 15
    killed(ready)
    with serving(ready):
        ready.run("cycle")
        assert ready.show("one")["effective_state"] == "manual_required"
    assert marks(ready) == ["one"]


def killed(ready: Edge) -> None:
    """End what an ended daemon left running; it was started by this test."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(ready.home).encode() in words and b"sleep 60" in words:
                os.killpg(int(entry.name), signal.SIGKILL)


@pytest.mark.adr("0008", "4")
def test_a_killed_daemon_with_a_child_alive_does_not_block_the_next(ready: Edge) -> None:
    with serving(ready, expect=-signal.SIGKILL) as daemon:
        slow(ready, "one", 60)
        until(lambda: marks(ready) == ["one"])
        daemon.kill()
        daemon.wait(timeout=PATIENCE_S)
    assert (ready.state / "control.sock").exists()
    assert ready.run("status", expect=(10, 20))
    with serving(ready):
        until(lambda: ready.show("one")["effective_state"] == "manual_required")
        assert marks(ready) == ["one"]
    killed(ready)


def test_sighup_reads_the_manifest_again(ready: Edge) -> None:
    manifest = ready.state / "manifest.json"
    with serving(ready) as daemon:
        manifest.write_text('{"schema_version":1,"enabled":[]}')
        daemon.send_signal(signal.SIGHUP)
        until(lambda: any(event["event"] == "manifest_read" for event in events_of(ready)))
        plan = json.dumps(shell_plan())
        error = ready.fails("action", "propose", "-", stdin=plan, agent="bot", expect=3)
        assert error["code"] == "handler_not_enabled"
        manifest.write_text("broken")
        daemon.send_signal(signal.SIGHUP)
        until(lambda: any(event["event"] == "manifest_refused" for event in events_of(ready)))
        assert ready.run("status")["health"] == "ok"


@pytest.mark.adr("0008", "7")
def test_the_answers_are_the_same_with_and_without_an_owner(ready: Edge) -> None:
    ready.propose(["/bin/true"], "--id", "one")
    commands = (["action", "list"], ["action", "show", "one"], ["user", "list"], ["verify"])
    alone = [ready.run(*words) for words in commands]
    with serving(ready):
        through = [ready.run(*words) for words in commands]
        error = ready.fails("action", "approve", "none", expect=3)
    assert through == alone
    assert error == ready.fails("action", "approve", "none", expect=3)


def test_a_named_socket_without_an_owner_is_unreachable(ready: Edge) -> None:
    path = str(ready.home / ("long" * 40) / "control.sock")
    words = ["--socket", path, "status"]
    assert ready.fails(*words, expect=4)["code"] == "owner_unreachable"


def test_a_long_socket_path_works(ready: Edge) -> None:
    place = ready.home / ("long" * 40)
    place.mkdir()
    path = str(place / "control.sock")
    with serving(ready, "--socket", path):
        words = ["--socket", path, "--session", str(ready.session_file())]
        assert ready.run(*words, "action", "list")["items"] == []
        assert ready.run("action", "list")["items"] == []


def ask(
    path: str, command: str, args: Mapping[str, object], token: str | None
) -> Mapping[str, object]:
    """Send one request as another user, over the socket and nothing else."""
    line = {"v": 1, "command": command, "args": args}
    line |= {"session_token": None, "agent_token": token}
    script = (
        "import json,os,socket,sys\n"
        f"os.setresgid({NOBODY},{NOBODY},{NOBODY}); os.setresuid({NOBODY},{NOBODY},{NOBODY})\n"
        f"s=socket.socket(socket.AF_UNIX); s.connect({path!r})\n"
        "s.sendall(sys.stdin.buffer.read())\n"
        "print(b''.join(iter(lambda: s.recv(65536), b'')).decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(line).encode() + b"\n",
        capture_output=True,
        check=True,
    )
    parts = [json.loads(part) for part in done.stdout.decode().splitlines() if part]
    body = json.loads("".join(part["part"] for part in parts))
    return {"exit": parts[0]["exit"], **body}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
@pytest.mark.adr("0008", "6")
def test_another_uid_proposes_and_can_do_nothing_else(ready: Edge) -> None:
    public = Path("/tmp") / f"qinglong-edge-{os.getpid()}-{id(ready)}"
    path = str(public / "control.sock")
    token = ready.token_file().read_text().strip()
    plan = json.dumps(shell_plan("/bin/true"))

    try:
        with serving(ready, "--socket", path, "--socket-group", "nogroup"):
            made = ask(
                path,
                "action.propose",
                {
                    "plan": plan,
                    "approval_request_id": "one",
                    "risk": None,
                    "expires_in_ms": 60_000,
                    "repeats": None,
                },
                token,
            )
            assert (made["exit"], made["state"]) == (0, "pending")
            ids = {"decision_id": "d", "consumption_id": "c", "dispatch_id": "x"}
            asked = {"id": "one", "action_digest": None, "hold": False, **ids}
            refused = ask(path, "action.approve", asked, token)
            assert refused["exit"] == 3
            for command in ("status", "cycle", "user.list", "user.reset", "verify"):
                assert ask(path, command, {}, None)["exit"] in {2, 3}
            seen = subprocess.run(
                ["/bin/ls", str(ready.state)], user=NOBODY, capture_output=True, check=False
            )
            assert seen.returncode != 0
            assert ready.show("one")["effective_state"] == "pending"
    finally:
        for name in public.glob("*"):
            name.unlink()
        if public.exists():
            public.rmdir()


def test_commands_are_answered_during_a_long_cycle(ready: Edge) -> None:
    slow(ready, "one", 3)
    with ready.start("cycle") as running:
        until(lambda: marks(ready) == ["one"])
        assert ready.run("status", expect=10)["backlog"]["executing"] == 1
        ready.propose(["/bin/true"], "--id", "two")
        ready.approve("two")
        assert marks(ready) == ["one"]
        out, _ = running.communicate(timeout=PATIENCE_S)
    assert json.loads(out)["dispatch"]["succeeded"] == 1
    assert ready.show("two")["effective_state"] == "due"
    assert not (ready.state / "control.sock").exists()


def test_a_cycle_that_is_asked_for_during_a_cycle_is_one_of_its_own(ready: Edge) -> None:
    slow(ready, "one", 1)
    with ready.start("cycle") as first:
        until(lambda: marks(ready) == ["one"])
        ready.propose(["/bin/true"], "--id", "two")
        ready.approve("two")
        with ready.start("cycle") as second:
            bodies = [
                json.loads(each.communicate(timeout=PATIENCE_S)[0]) for each in (first, second)
            ]
    assert [body["dispatch"]["succeeded"] for body in bodies] == [1, 1]
    assert [body["dispatch"]["stop_reason"] for body in bodies] == ["complete", "complete"]
    assert (first.returncode, second.returncode) == (10, 0)
    assert ready.show("two")["effective_state"] == "succeeded"


@pytest.mark.adr("0008", "8")
def test_the_daemon_maps_no_openssl(ready: Edge) -> None:
    with serving(ready) as daemon:
        slow(ready, "one", 0)
        ready.run("action", "wait", "one", "--timeout", "20")
        ready.login()
        ready.user("ben", "viewer")
        wrong = ready.write("wrong", "not the password\n")
        error = ready.fails("login", "ben", "--password-file", wrong, expect=3)
        assert error["code"] == "login_refused"
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    for name in ("_ssl", "_hashlib", "libcrypto", "_asyncio"):
        assert name not in maps
