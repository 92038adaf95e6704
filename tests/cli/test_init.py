"""`init` in both forms: made once, finished when interrupted, compared when repeated."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Edge

SHM = Path("/dev/shm")
CHANGES = pytest.mark.alone("serve", "cycle", reason="changes the state beside its owner")


def test_a_new_state_is_private_and_answers_with_what_it_is(edge: Edge) -> None:
    body = edge.init()
    assert body == {
        "state": str(edge.state),
        "profile": "edge",
        "project_id": "default",
        "owner": "ana",
        "schema_version": 1,
        "created": True,
    }
    assert edge.state.stat().st_mode & 0o777 == 0o700
    for path in edge.state.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert json.loads((edge.state / "manifest.json").read_text())["enabled"] == ["shell.exec"]


def test_the_same_call_again_creates_nothing(edge: Edge) -> None:
    edge.init()
    before = edge.snapshot()
    assert edge.init()["created"] is False
    assert edge.snapshot() == before


@pytest.mark.parametrize(
    "other", [["--profile", "standalone"], ["--project", "attic"], ["--enable", "run.create"]]
)
def test_a_different_call_is_refused(edge: Edge, other: list[str]) -> None:
    edge.init(enable=None)
    before = edge.snapshot()
    file = edge.password_file()
    words = ["init", "--owner", "ana", "--password-file", str(file), "--volatile", *other]
    assert edge.fails(*words, expect=3)["code"] == "already_initialised"
    assert edge.snapshot() == before


@pytest.mark.scenario(220)
@pytest.mark.adr("0036", "5.1")
@pytest.mark.parametrize("profile", ["cluster-control", "worker"])
def test_a_profile_of_the_cluster_is_refused_before_anything_is_made(
    edge: Edge, profile: str
) -> None:
    words = ["init", "--owner", "ana", "--password-file", str(edge.password_file())]
    error = edge.fails(*words, "--profile", profile, expect=3)
    assert error["code"] == "profile_not_local"
    assert not edge.state.exists()


@pytest.mark.parametrize("profile", ["", "EDGE", " edge", "router"])
def test_an_unknown_or_empty_profile_is_a_usage_error(edge: Edge, profile: str) -> None:
    words = ["init", "--owner", "ana", "--password-file", str(edge.password_file())]
    edge.fails(*words, "--profile", profile, expect=2)
    assert not edge.state.exists()


def test_the_first_boot_form_reads_one_file(edge: Edge) -> None:
    file = edge.write(
        "first.json",
        {
            "schema_version": 1,
            "owner": "ana",
            "password_file": str(edge.password_file()),
            "profile": "standalone",
            "project": "attic",
            "enable": ["shell.exec", "run.create"],
            "volatile": True,
        },
    )
    body = edge.run("init", "--from", file)
    assert (body["profile"], body["project_id"], body["created"]) == ("standalone", "attic", True)
    assert edge.run("init", "--from", file)["created"] is False
    edge.login()
    states = {row["action_type"]: row["state"] for row in edge.run("handler", "list")["items"]}
    assert states["shell.exec"] == "enabled"
    assert (states["run.create"], states["run.cancel"]) == ("enabled", "not_available")


@pytest.mark.adr("0004", "7")
@pytest.mark.skipif(not SHM.is_dir(), reason="no memory file system at /dev/shm")
def test_memory_is_refused_unless_it_is_asked_for(edge: Edge) -> None:
    state = SHM / f"qinglong-edge-test-{os.getpid()}"
    words = ["--state", str(state), "init", "--owner", "ana"]
    words += ["--password-file", str(edge.password_file())]
    try:
        assert edge.fails(*words, expect=3)["code"] == "state_volatile"
        assert not any(state.rglob("*"))
        assert edge.run(*words, "--volatile")["created"] is True
    finally:
        shutil.rmtree(state, ignore_errors=True)


@pytest.mark.parametrize("command", ["status", "cycle", "verify", "migrate", "action list"])
def test_without_a_state_every_command_says_so(edge: Edge, command: str) -> None:
    assert edge.fails(*command.split(), expect=3)["code"] == "not_initialised"
    assert not edge.state.exists()


@CHANGES
def test_a_newer_schema_is_refused_and_an_older_one_asks_for_migrate(ready: Edge) -> None:
    for version, code in ((9, "schema_newer"), (0, "migration_required")):
        with sqlite3.connect(ready.state / "state.db") as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        assert ready.fails("status", expect=3)["code"] == code


@CHANGES
@pytest.mark.adr("0002", "7")
def test_a_database_that_was_put_back_is_refused(ready: Edge) -> None:
    (ready.state / "epoch").write_text("7\n")
    assert ready.fails("status", expect=5)["code"] == "store_rolled_back"
    (ready.state / "epoch").write_text("not a number\n")
    assert ready.run("status")["health"] == "ok"


@CHANGES
@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\x00" + b"\x00" * 600])
def test_a_garbled_database_is_damage_and_is_not_recreated(ready: Edge, content: bytes) -> None:
    (ready.state / "state.db").write_bytes(content)
    assert ready.fails("status", expect=5)["code"] == "store_damaged"
    assert (ready.state / "state.db").read_bytes() == content


def interpreter_serves(uid: int) -> bool:
    """Tell whether another user could load a module that is not loaded yet."""
    command = [sys.executable, "-I", "-S", "-c", "import subprocess"]
    try:
        return subprocess.run(command, user=uid, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@CHANGES
@pytest.mark.adr("0004", "6")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to hand a state to another user")
def test_root_becomes_the_owner_of_somebodys_state(ready: Edge, public: Path) -> None:
    ready = Edge(shutil.copytree(ready.home, public / "home", copy_function=shutil.copy2))
    for path in [ready.state, *ready.state.rglob("*")]:
        os.chown(path, 65534, 65534)
    ready.home.chmod(0o755)
    ready.propose(["/bin/true"], "--id", "one")
    ready.approve("one")
    if not interpreter_serves(65534):
        pytest.skip("this interpreter's files cannot be read by another user")
    ready.run("cycle")
    assert ready.show("one")["effective_state"] == "succeeded"
    assert {path.stat().st_uid for path in ready.state.rglob("*")} == {65534}
