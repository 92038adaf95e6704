"""A file of the state that cannot be believed stops what rests on it, and has a next step."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Edge, serving, shell_plan

pytestmark = pytest.mark.alone("serve", "cycle", reason="breaks the state beside its owner")
Break = Callable[[Path], object]


def garbled(path: Path) -> None:
    path.write_text('{"x"')


def writable_by_others(path: Path) -> None:
    path.chmod(0o666)


def a_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.fixture
def due(ready: Edge) -> Edge:
    """Return a state with an action that is due (`one`, it leaves a mark) and a pending one."""
    ready.propose(["/usr/bin/touch", str(ready.home / "mark")], "--id", "one")
    ready.propose(["/bin/true"], "--id", "two")
    ready.approve("one")
    return ready


@pytest.mark.parametrize("broken", [garbled, writable_by_others, a_directory])
def test_a_manifest_that_cannot_be_believed_stops_no_reading(due: Edge, broken: Break) -> None:
    broken(due.state / "manifest.json")
    problem = {"row": None, "problem": "manifest_damaged"}
    assert due.run("verify", expect=20) == {"ok": False, "problems": [problem]}
    status = due.run("status", expect=20)
    assert status["health"] == "attention"
    assert status["admission"] == {"open": False, "reasons": ["manifest_damaged"]}
    assert status["backlog"]["due"] == 1
    due.login()
    for words in (
        ["action", "list"],
        ["action", "show", "one"],
        ["user", "list"],
        ["agent", "list"],
        ["recovery", "list"],
        ["action", "reject", "two", "--reason", "too_risky"],
    ):
        due.run(*words)


def test_a_manifest_that_cannot_be_believed_lets_nothing_start(due: Edge) -> None:
    manifest = due.state / "manifest.json"
    before = manifest.read_bytes()
    garbled(manifest)
    for words in (["cycle"], ["serve"], ["handler", "list"]):
        assert due.fails(*words, expect=5)["code"] == "manifest_damaged"
    plan = json.dumps(shell_plan())
    error = due.fails("action", "propose", "-", stdin=plan, agent="bot", expect=5)
    assert error["code"] == "manifest_damaged"
    told = due.call("action", "propose", "-", "--token-file", due.token_file(), stdin=plan)
    assert b"hint: write STATE/manifest.json again" in told.stderr
    execution = due.show("one")["execution"]
    assert (execution["status"], execution["attempt_count"]) == ("pending", 0)
    assert not (due.home / "mark").exists()
    assert len(due.run("action", "list")["items"]) == 2
    manifest.write_bytes(before)
    assert due.run("cycle")["dispatch"]["succeeded"] == 1
    assert (due.home / "mark").exists()


def test_recovery_goes_on_where_nothing_is_due(ready: Edge) -> None:
    garbled(ready.state / "manifest.json")
    body = ready.run("cycle")
    assert body["recovery"]["stop_reason"] == "complete"


def test_an_owner_that_serves_keeps_its_manifest_and_verify_names_the_file(ready: Edge) -> None:
    with serving(ready):
        garbled(ready.state / "manifest.json")
        assert ready.run("status")["health"] == "ok"
        problems = ready.run("verify", expect=20)["problems"]
        assert problems == [{"row": None, "problem": "manifest_damaged"}]
        ready.propose(["/bin/true"])


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("manifest.json", garbled),
        ("session", garbled),
        ("session", a_directory),
        ("epoch", lambda path: path.write_text("999\n")),
        ("lock", a_directory),
        ("logs", garbled),
        ("state.db", garbled),
        ("state.db", Path.unlink),
        ("state.db-journal", a_directory),
    ],
)
def test_every_broken_file_has_a_next_step(ready: Edge, name: str, broken: Break) -> None:
    path = ready.state / name
    ready.propose(["/bin/true"], "--id", "one")
    ready.approve("one")
    ready.run("verify")  # folds the log into the database
    broken(path)
    verified = ready.call("verify")
    init = ["init", "--owner", "ana", "--password-file", str(ready.password_file())]
    for words in (["status"], ["action", "list"], ["action", "logs", "one"], init):
        told = ready.call(*words).stderr.decode()
        assert "hint: wait a moment" not in told, ready.told()
        if "hint: change nothing and look: qinglong-edge verify" in told:
            assert verified.returncode == 20, ready.told()
