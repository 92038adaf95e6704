"""Kill real children of one state directory, and judge what they left with an oracle of its own.

The oracle (`crash_oracle`) reads a copy of the database file with SQLite alone, so a fault of the
program's own reading cannot hide a fault of its writing.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from qinglong_edge.cli.session_file import StoredSession, write_session
from qinglong_edge.executor.ambient import system_entropy
from tests.support.crash_driver import (
    ANSWERS,
    BY_PERSON,
    COMPLAINTS,
    POINTS,
    Call,
    Nursery,
    Orders,
    Spot,
)
from tests.support.crash_oracle import View, read_view

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
DRIVER = ("-P", "-B", "-m", "tests.support.crash_driver")
PATIENCE_S = 20
HOUR_MS = 3_600_000
PASSWORD = "correct horse"
BOT_TOKEN = "b" * 42 + "A"
ANA_TOKEN = "a" * 42 + "A"
BOT_FILE = "bot.token"
ENABLED = ["run.create", "shell.exec", "task.publish"]

_PRELUDE = r"""
d=$(readlink /proc/$PPID/cwd)
mark() { printf '%s %s\n' "$QINGLONG_EDGE_DISPATCH_ID" "$1" |
  dd of="$d/marks" oflag=append conv=notrunc,fsync 2>/dev/null; }
mark begin
"""
SCRIPTS = {
    "good": "",
    "bad": "",  # its directory is missing, so it is never begun
    "slow": "sleep 0.5",
    "silent": "kill -9 $$",
    "stopping": "kill -TERM $PPID; sleep 0.5",  # the signal is heeded before it ends
    "deadly": "kill -9 $PPID; mark end",
    "copying": 'cp -a "$d/state" "$d/mid"; cp "$d/bot.token" "$d/mid.token"',
}
TASK = {"schema_version": 1, "task_id": "backup", "name": "Backup", "argv": ["/bin/true"]}
ON_DATABASE: dict[str, dict[str, Any]] = {
    "publish": {"action_type": "task.publish", "params": TASK},
    "run": {"action_type": "run.create", "params": {"task_id": "backup"}},
}


def plan(kind: str) -> str:
    """Return a plan that marks each execution in a file of the child's working directory.

    What it does to the database needs no mark: its row is one.
    """
    if kind in ON_DATABASE:
        return json.dumps({"schema_version": 1, **ON_DATABASE[kind]})
    params: dict[str, Any] = {"argv": ["/bin/sh", "-c", _PRELUDE + SCRIPTS[kind]]}
    if kind == "bad":
        params["cwd"] = "/nonexistent/directory"
    return json.dumps({"schema_version": 1, "action_type": "shell.exec", "params": params})


def init(owner: str = "ana", **changes: Any) -> Call:
    args: dict[str, Any] = {"owner": owner, "password": PASSWORD, "profile": None}
    args |= {"project": None, "enable": ENABLED, "volatile": True}
    return Call("init", args | changes)


def login(nth: int = 0) -> Call:
    token = ANA_TOKEN if nth == 0 else f"{nth:042}A"
    args = {"name": "ana", "password": PASSWORD, "totp": None, "recovery_code": None}
    return Call("login", {**args, "session_token": token, "session_id": f"ses-{nth}"})


def add_agent(name: str = "bot", token: str = BOT_TOKEN) -> Call:
    args = {"name": name, "role": "operator", "mutation_id": f"add-{name}", "token": token}
    return Call("agent.add", args)


def propose(nth: int = 1, kind: str = "good", lifetime_ms: int = HOUR_MS) -> Call:
    args = {"plan": plan(kind), "approval_request_id": f"apr-{nth}", "risk": None}
    return Call("action.propose", {**args, "expires_in_ms": lifetime_ms, "repeats": None}, BOT_FILE)


def approve(nth: int = 1, *, hold: bool = False) -> Call:
    args = {"id": f"apr-{nth}", "action_digest": None, "hold": hold, "decision_id": f"dec-{nth}"}
    return Call("action.approve", args | _spend(nth))


def dispatch(nth: int = 1) -> Call:
    return Call("action.dispatch", {"id": f"apr-{nth}"} | _spend(nth))


def reject(nth: int = 1) -> Call:
    args = {"id": f"apr-{nth}", "reason": "too_risky", "decision_id": f"dec-{nth}"}
    return Call("action.reject", args)


def cancel(nth: int = 1) -> Call:
    return Call("action.cancel", {"id": f"apr-{nth}", "cancel_id": f"can-{nth}"})


def settle(nth: int, version: int, decision: str = "abandon_unknown") -> Call:
    """Return a person's word on an unknown outcome, as it stood at that version."""
    args = {"id": f"dsp-{nth}", "version": version, "decision": decision}
    return Call(BY_PERSON, {**args, "mutation_id": f"man-{nth}"})


def show(nth: int = 1) -> Call:
    return Call("action.show", {"id": f"apr-{nth}"}, BOT_FILE)


def _spend(nth: int) -> dict[str, Any]:
    return {"consumption_id": f"con-{nth}", "dispatch_id": f"dsp-{nth}"}


CYCLE = Call("cycle", {})
VERIFY = Call("verify", {})
STATUS = Call("status", {})


def ready(*kinds: str) -> tuple[Call, ...]:
    """Return the calls that bring actions of these kinds to their dispatch, in this order."""
    numbered = tuple(enumerate(kinds, 1))
    return tuple(call for nth, kind in numbered for call in (propose(nth, kind), approve(nth)))


class Ended(NamedTuple):
    """Hold how a child ended: what it printed, and which crash points it passed."""

    code: int
    answers: list[dict[str, Any]]
    points: list[tuple[str, str]]

    @property
    def exits(self) -> list[int]:
        return [answer["exit"] for answer in self.answers]

    @property
    def errors(self) -> list[str | None]:
        return [answer.get("error") for answer in self.answers]


class Place:
    """Be one directory with a state in it, in which children run one after another."""

    def __init__(self, directory: Path, nursery: Nursery, state: Path | None = None) -> None:
        self.directory = directory
        self.state = state or directory / "state"
        self.seen = self.state  # how this process finds it, where a child sees other mounts
        self.nursery = nursery
        self.prefix: tuple[str, ...] = ()  # a command that starts a child of its own kind

    def orders(self, *calls: Call, **more: Any) -> Orders:
        return Orders(str(self.state), calls, **more)

    def run(self, *calls: Call, **more: Any) -> Ended:
        """Run a child to its end, whatever end that is."""
        points = self.directory / POINTS
        points.unlink(missing_ok=True)
        orders = self.orders(*calls, **more)
        if self.prefix:
            code = self._spawn([*self.prefix, sys.executable, *DRIVER, json.dumps(orders)])
        else:
            code = self.nursery.run(str(self.directory), orders)
        assert code in {0, -signal.SIGKILL}, (self.directory / COMPLAINTS).read_text()
        answers = (self.directory / ANSWERS).read_text().splitlines()
        lines = points.read_text().split("\n")[:-1]
        return Ended(code, [json.loads(each) for each in answers], [_pair(each) for each in lines])

    def _spawn(self, argv: list[str]) -> int:
        out, err = self.directory / ANSWERS, self.directory / COMPLAINTS
        with out.open("wb") as stdout, err.open("wb") as stderr:
            return subprocess.run(
                argv,
                cwd=self.directory,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                timeout=PATIENCE_S,
                check=False,
            ).returncode

    def die(self, *calls: Call, kill: Spot, **more: Any) -> Ended:
        """Run a child that is killed at exactly that point."""
        ended = self.run(*calls, kill=kill, **more)
        assert ended.code == -signal.SIGKILL, f"{kill} was never reached: {ended}"
        return ended

    def live(self, *calls: Call, **more: Any) -> Ended:
        """Run a child that nothing happens to."""
        ended = self.run(*calls, **more)
        assert ended.code == 0, ended
        return ended

    def log_in(self, nth: int = 0, **more: Any) -> None:
        """Open a session and keep it where the next children look for it."""
        call = login(nth)
        body = self.live(call, **more).answers[0]["body"]
        session = StoredSession("user:ana", call.args["session_token"], body["expires_at_ms"])
        write_session(str(self.seen / "session"), session, entropy=system_entropy)

    def marks(self) -> list[tuple[str, str]]:
        path = self.directory / "marks"
        return [_pair(line) for line in path.read_text().splitlines()] if path.exists() else []

    def await_mark(self, word: str) -> None:
        """Wait until an action that outlived its child has said its last word."""
        end = time.monotonic() + PATIENCE_S
        while word not in {said for _, said in self.marks()}:
            assert time.monotonic() < end, f"no mark {word!r}: {self.marks()}"
            time.sleep(0.01)

    def view(self) -> View:
        """Return what is stored, from a copy that SQLite alone recovers."""
        begun = Counter(name for name, word in self.marks() if word == "begin")
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory, "state.db")
            for path in self.seen.glob("state.db*"):
                shutil.copy(path, Path(directory, path.name))
            if not copy.exists():
                return View({}, {}, begun)
            with closing(sqlite3.connect(copy)) as connection:
                return read_view(connection, begun)


def _pair(line: str) -> tuple[str, str]:
    first, second = line.split(" ")
    return first, second


class Workshop:
    """Build each starting state once, and hand out copies of it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._built: dict[str, Path] = {}
        self._copies = 0
        self._nursery = Nursery([sys.executable, *DRIVER], ENVIRONMENT, patience_s=PATIENCE_S)

    def close(self) -> None:
        self._nursery.close()

    def empty(self) -> Place:
        """Return a place without a state."""
        self._copies += 1
        directory = self._root / f"place-{self._copies}"
        directory.mkdir()
        (directory / BOT_FILE).write_text(BOT_TOKEN)
        return Place(directory, self._nursery)

    def place(self, *stages: dict[str, Any]) -> Place:
        """Return a copy of an initialised state after these stages of `run` arguments."""
        key = json.dumps(stages)
        if key not in self._built:
            self._built[key] = self._build(stages)
        self._copies += 1
        directory = self._root / f"place-{self._copies}"
        shutil.copytree(self._built[key], directory, ignore=shutil.ignore_patterns("control.sock"))
        return Place(directory, self._nursery)

    def home(self, *calls: Call) -> Place:
        """Return a copy of an initialised state after these calls, each in its own process."""
        return self.place(*({"calls": [call]} for call in calls))

    def _build(self, stages: tuple[dict[str, Any], ...]) -> Path:
        if not stages:
            return self._make_home()
        place = self.place(*stages[:-1])
        more = dict(stages[-1])
        ended = place.run(*more.pop("calls"), **more)
        assert set(ended.exits) <= {0, 10}, ended
        return place.directory

    def _make_home(self) -> Path:
        place = self.empty()
        place.live(init())
        place.log_in()
        assert place.live(add_agent()).exits == [0]
        return place.directory
