"""What happens to a state behind the program's back: named damage, no hang, no second run."""

import os
import signal
import subprocess
import time

import pytest

from tests.cli.conftest import Edge

BREAKS = pytest.mark.alone("serve", "cycle", reason="breaks the database beside its owner")
COMMANDS = (["status"], ["verify"], ["cycle"], ["action", "list"])


@BREAKS
def test_a_lost_database_is_never_made_anew(ready: Edge) -> None:
    """Its log would bring the old users and approvals back under the new owner's name."""
    ready.propose(["/bin/true"], "--id", "one")
    for left in ("state.db-wal", "epoch"):
        assert (ready.state / left).exists()
        (ready.state / "state.db").unlink(missing_ok=True)
        words = ["init", "--owner", "neo", "--password-file", str(ready.password_file("neo"))]
        assert ready.fails(*words, "--volatile", expect=5)["code"] == "store_missing"
        assert not (ready.state / "state.db").exists()
        (ready.state / "state.db-wal").unlink(missing_ok=True)


@BREAKS
def test_a_damaged_schema_is_damage_for_every_command(ready: Edge) -> None:
    ready.run("status")
    data = bytearray((ready.state / "state.db").read_bytes())
    data[data.find(b"tableboots") + 5] = 0xFF
    (ready.state / "state.db").write_bytes(data)
    for command in COMMANDS:
        assert ready.fails(*command, expect=5)["code"] in {"store_damaged", "schema_damaged"}


@BREAKS
@pytest.mark.parametrize("companion", ["state.db-journal", "state.db-wal"])
@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_a_companion_that_is_no_file_is_damage_and_no_hang(
    ready: Edge, companion: str, kind: str
) -> None:
    path = ready.state / companion
    ready.run("status")
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(ready.home / "nowhere")
    else:
        path.mkdir()
    for command in COMMANDS:
        assert ready.fails(*command, expect=5)["code"] == "store_damaged"


@pytest.mark.alone("serve", reason="a daemon starts what is approved at once")
@pytest.mark.parametrize("vandalism", ["rm -f {state}/state.db-wal", "mv {state} {state}.gone"])
def test_an_action_that_takes_the_log_away_is_not_run_again(ready: Edge, vandalism: str) -> None:
    script = f"echo ran >> {ready.home}/marks; " + vandalism.format(state=ready.state)
    ready.propose(["/bin/sh", "-c", script], "--id", "one")
    ready.approve("one")
    ready.run("status", expect=10)
    assert ready.fails("cycle", expect=4)["code"] == "cycle_incomplete"
    if not ready.state.exists():
        ready.state.with_name("state.gone").rename(ready.state)
    ready.call("--json", "cycle")
    ready.call("--json", "cycle")
    assert (ready.home / "marks").read_text() == "ran\n"
    assert ready.show("one")["effective_state"] in {"manual_required", "succeeded"}


def test_a_demo_without_a_place_says_so(edge: Edge) -> None:
    error = edge.fails("demo", expect=4, env={"TMPDIR": str(edge.home / "nowhere")})
    assert error["code"] == "demo_failed"


def test_a_demo_that_is_ended_leaves_nothing(edge: Edge) -> None:
    env = edge.environment({"TMPDIR": str(edge.home)})
    with subprocess.Popen(
        edge.command("demo"), env=env, cwd=edge.home, stdout=subprocess.DEVNULL
    ) as demo:
        for _ in range(500):
            if any(edge.home.iterdir()):
                break
            time.sleep(0.01)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(timeout=30) == 130
    assert list(edge.home.iterdir()) == []


def test_a_refused_init_makes_nothing(edge: Edge) -> None:
    words = ["--owner", "ana", "--password-file", str(edge.password_file())]
    long = edge.home / ("x" * 200) / ("y" * 200) / ("z" * 150)
    error = edge.fails("--state", str(long), "init", *words, expect=3)
    assert error["code"] == "path_too_long"
    assert not (edge.home / ("x" * 200)).exists()


@pytest.mark.alone("serve", reason="signals the cycle that runs its action")
def test_a_dropped_line_lets_the_running_action_end(ready: Edge) -> None:
    script = f"echo $$ > {ready.home}/pid; sleep 0.4"
    ready.propose(["/bin/sh", "-c", script], "--id", "one")
    ready.approve("one")
    with ready.start("cycle") as cycle:
        while not (ready.home / "pid").exists():
            time.sleep(0.01)
        cycle.send_signal(signal.SIGHUP)
        assert cycle.wait(timeout=30) == 0
    assert ready.show("one")["effective_state"] == "succeeded"
