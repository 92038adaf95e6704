"""Drive the program from outside, as a person or a script does; nothing of it is imported here.

    def test_a_story(ready: Edge) -> None:
        request = ready.propose(["/bin/true"])["approval_request_id"]
        assert ready.approve(request)["state"] == "consumed"
        ready.run("cycle")
        assert ready.run("action", "show", request)["effective_state"] == "succeeded"
        error = ready.fails("action", "approve", request, expect=3)
        assert error["code"] == "approval_state_conflict"

`edge` is a program, an empty directory for files and a state that does not exist yet; `ready` has a
state with the owner `ana`, logged in, the agent `bot` (operator) and `shell.exec` enabled. It is a
copy of one state that is made once in a run, because stretching a password is slow on purpose.

The checkout is run with `python -m qinglong_edge`. Where QINGLONG_EDGE_TEST_PYZ names an archive,
that is run instead, isolated and without `site`, so that the same cases judge what is shipped.
Where QINGLONG_EDGE_TEST_WAY is `serve`, a daemon owns the state of `ready` and the same cases ask
it; what must have the state for itself is marked `alone` and skipped aloud there.

Every call has its own process, a small environment of its own (`Edge.environ`), `Edge.home` as its
working directory, and a deadline. `run` and `fails` hold what the contract says of every command:
one JSON object on one line of stdout, or an empty stdout and one error object in the last line of
stderr; never a traceback.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYZ = "QINGLONG_EDGE_TEST_PYZ"
WAY = "QINGLONG_EDGE_TEST_WAY"  # "serve": a daemon owns the state of `ready` meanwhile
PASSWORD = "correct horse battery staple"
DEADLINE_S = 120
FAILURES = frozenset({2, 3, 4, 5, 70})

Json = dict[str, Any]


class Edge:
    """One program, one home directory, one state; `last` is the process that ended last."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = home / "state"
        self.last: subprocess.CompletedProcess[bytes] | None = None
        self.environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "QINGLONG_EDGE_STATE": str(self.state),
        }

    # --- calling -----------------------------------------------------------------------------

    def command(self, *args: str | Path | bytes) -> list[str | bytes]:
        """Return the whole argument list of a call, for `subprocess` and for killing."""
        archive = os.environ.get(PYZ)
        program = ["-I", "-S", archive] if archive else ["-m", "qinglong_edge"]
        words = [word if isinstance(word, bytes) else str(word) for word in args]
        return [sys.executable, *program, *words]

    def environment(self, env: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Return the environment of a call; a name that `env` sets to None is left out."""
        merged: dict[str, str | None] = {**self.environ, **(env or {})}
        if not os.environ.get(PYZ):
            merged["PYTHONPATH"] = str(ROOT)
        return {name: value for name, value in merged.items() if value is not None}

    def call(
        self,
        *args: str | Path | bytes,
        stdin: str | bytes | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run the program to its end and judge nothing but the absence of a traceback."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        self.last = subprocess.run(
            self.command(*args),
            input=b"" if data is None else data,
            capture_output=True,
            env=self.environment(env),
            cwd=self.home,
            timeout=DEADLINE_S,
            check=False,
        )
        assert b"Traceback" not in self.last.stdout + self.last.stderr, self.told()
        return self.last

    def run(
        self,
        *args: str | Path | bytes,
        stdin: str | bytes | None = None,
        json: bool = True,
        expect: int | Sequence[int] = 0,
        env: Mapping[str, str | None] | None = None,
        agent: str | None = None,
    ) -> Json:
        """Run a command that answers, and return its JSON object.

        `expect` names the exit code or the codes that may be. Without `json` the answer is
        `{"stdout": text, "stderr": text}`. `agent` calls with the token of that agent.
        """
        done = self.call(*self._words(args, as_json=json, agent=agent), stdin=stdin, env=env)
        codes = (expect,) if isinstance(expect, int) else tuple(expect)
        assert done.returncode in codes, self.told()
        assert not FAILURES & set(codes), "a failure is asked for with `fails`"
        if not json:
            return {"stdout": done.stdout.decode(), "stderr": done.stderr.decode()}
        return one_object(done.stdout, self.told())

    def fails(
        self,
        *args: str | Path | bytes,
        expect: int | Sequence[int],
        stdin: str | bytes | None = None,
        env: Mapping[str, str | None] | None = None,
        agent: str | None = None,
    ) -> Json:
        """Run a command that must fail, and return its error object."""
        done = self.call(*self._words(args, as_json=True, agent=agent), stdin=stdin, env=env)
        codes = (expect,) if isinstance(expect, int) else tuple(expect)
        assert done.returncode in codes, self.told()
        assert done.stdout == b"", self.told()
        lines = done.stderr.splitlines(keepends=True)
        assert lines, self.told()
        assert sum(line.startswith(b'{"error":') for line in lines) == 1, self.told()
        whole = one_object(lines[-1], self.told())
        assert set(whole) == {"error"}, self.told()
        error: Json = whole["error"]
        assert set(error) == {"code", "message", "retryable", "details"}, self.told()
        assert error["code"].replace("_", "").isalnum(), self.told()
        assert error["code"].islower(), self.told()
        assert error["message"], self.told()
        assert isinstance(error["retryable"], bool), self.told()
        assert isinstance(error["details"], dict), self.told()
        return error

    def told(self) -> str:
        """Return what the last process said, for a failing assertion."""
        if self.last is None:
            return "nothing ran"
        words = " ".join(map(str, self.last.args[1:]))
        out = self.last.stdout.decode("utf-8", "backslashreplace")
        error = self.last.stderr.decode("utf-8", "backslashreplace")
        return f"{words}\nexit {self.last.returncode}\nstdout: {out}\nstderr: {error}"

    def _words(
        self, args: tuple[str | Path | bytes, ...], *, as_json: bool, agent: str | None
    ) -> list[str | Path | bytes]:
        words: list[str | Path | bytes] = ["--json"] if as_json else []
        if agent is not None:
            words += ["--token-file", self.token_file(agent)]
        return [*words, *args]

    # --- files -------------------------------------------------------------------------------

    def write(self, name: str, content: str | bytes | Mapping[str, Any]) -> Path:
        """Write a file of the caller's home directory: text, bytes, or an object as JSON."""
        path = self.home / name
        if isinstance(content, Mapping):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(0o600)
        return path

    def password_file(self, name: str = "ana", password: str = PASSWORD) -> Path:
        """Write, and return, the file that holds a user's password."""
        return self.write(f"{name}.password", f"{password}\n")

    def token_file(self, name: str = "bot") -> Path:
        """Return the file that holds an agent's token; `agent` writes it."""
        return self.home / f"{name}.token"

    def session_file(self) -> Path:
        """Return the file of the session that `login` opens where nothing else is said."""
        return self.state / "session"

    def snapshot(self) -> dict[str, bytes]:
        """Return the content of every file of the state but the lock, to prove that none moved."""
        return {
            str(path.relative_to(self.state)): path.read_bytes()
            for path in sorted(self.state.rglob("*"))
            if path.is_file() and path.name != "lock"
        }

    # --- the usual steps ---------------------------------------------------------------------

    def init(self, *more: str, owner: str = "ana", enable: str | None = "shell.exec") -> Json:
        """Make the state in a directory that may lie in memory, as temporary ones do."""
        types = [] if enable is None else ["--enable", enable]
        file = self.password_file(owner)
        return self.run(
            "init", "--owner", owner, "--password-file", file, "--volatile", *types, *more
        )

    def login(self, name: str = "ana", *more: str | Path) -> Json:
        """Log a user in whose password file was written."""
        return self.run("login", name, "--password-file", self.home / f"{name}.password", *more)

    def user(self, name: str, role: str = "admin") -> Json:
        """Add a user with a password file of their own."""
        file = self.password_file(name, f"{name}-{PASSWORD}")
        return self.run("user", "add", name, "--role", role, "--password-file", file)

    def agent(self, name: str = "bot", role: str = "operator") -> Json:
        """Add an agent and keep its token in its file."""
        added = self.run("agent", "add", name, "--role", role)
        self.write(self.token_file(name).name, f"{added['token']}\n")
        return added

    def propose(
        self,
        plan: Mapping[str, Any] | Sequence[str],
        *more: str,
        agent: str = "bot",
        expect: int = 0,
    ) -> Json:
        """Propose a plan, or the `shell.exec` of an argv, as an agent, through stdin."""
        whole = plan if isinstance(plan, Mapping) else shell_plan(*plan)
        return self.run(
            "action", "propose", "-", *more, stdin=json.dumps(whole), agent=agent, expect=expect
        )

    def approve(self, request_id: str, *more: str) -> Json:
        """Approve a request as the user who is logged in."""
        return self.run("action", "approve", request_id, *more)

    def show(self, request_id: str) -> Json:
        """Show an action as the user who is logged in."""
        return self.run("action", "show", request_id)


def one_object(data: bytes, told: str) -> Json:
    """Return the one JSON object on the one line that `data` is."""
    assert data.endswith(b"\n"), told
    assert data.count(b"\n") == 1, told
    value = json.loads(data)
    assert isinstance(value, dict), told
    return value


def shell_plan(*argv: str, **params: Any) -> Json:
    """Return the plan file of a `shell.exec`."""
    return {
        "schema_version": 1,
        "action_type": "shell.exec",
        "params": {"argv": list(argv) or ["/bin/true"], **params},
    }


@pytest.fixture
def edge(tmp_path: Path) -> Edge:
    """Return a program without a state."""
    return Edge(tmp_path)


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Edge(tmp_path_factory.mktemp("template"))
    made.init()
    made.login()
    made.agent()
    return made.home


@pytest.fixture
def ready(tmp_path: Path, _template: Path, request: pytest.FixtureRequest) -> Iterator[Edge]:
    """Return a program with a state, a logged-in owner `ana` and an agent `bot`."""
    serve = os.environ.get(WAY) == "serve"
    if serve and request.node.get_closest_marker("alone"):
        pytest.skip("needs the state for itself, so no daemon may own it")
    shutil.copytree(_template, tmp_path, dirs_exist_ok=True, copy_function=shutil.copy2)
    edge = Edge(tmp_path)
    if not serve:
        yield edge
        return
    with served(edge):
        yield edge


@contextmanager
def served(edge: Edge) -> Iterator[None]:
    """Have a daemon own the state meanwhile; it must end by itself, drained."""
    events = edge.home.parent / f"{edge.home.name}.events"
    with events.open("wb") as stream:
        daemon = subprocess.Popen(
            edge.command("--json", "serve"),
            env=edge.environment(),
            cwd=edge.home,
            stdout=subprocess.DEVNULL,
            stderr=stream,
        )
    try:
        for _ in range(DEADLINE_S * 100):
            if b'"listening"' in events.read_bytes():
                break
            time.sleep(0.01)
        else:
            pytest.fail(f"the daemon does not listen: {events.read_text()}")
        yield
    finally:
        daemon.terminate()
        assert daemon.wait(timeout=DEADLINE_S) == 0, events.read_text()
