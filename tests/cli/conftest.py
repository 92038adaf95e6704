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
it. Where it is `cycle`, a long cycle owns it, until a case asks for a cycle of its own or ends; its
action stands in the lists, so `Edge.actions` leaves it out, and makes `status` converge, which
`Edge.at_rest` says. What must have the state
for itself says so: `@pytest.mark.alone("serve", reason="...")` is skipped aloud that way.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYZ = "QINGLONG_EDGE_TEST_PYZ"
WAY = "QINGLONG_EDGE_TEST_WAY"  # who owns the state of `ready` meanwhile
WAYS = ("", "serve", "cycle")  # nobody, a daemon, a long cycle
LONG = "long"  # the id of the action of the long cycle
AT_REST = (0, "ok")  # exit and health that `status` answers where a case left nothing to do
PASSWORD = "correct horse battery staple"
DEADLINE_S = 120
PATIENCE_S = 30.0
LISTENING = b'"listening"'
FAILURES = frozenset({2, 3, 4, 5, 70})

Json = dict[str, Any]


class Edge:
    """One program, one home directory, one state; `last` is the process that ended last."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = home / "state"
        self.events = home.with_name(f"{home.name}.events")
        self.before_cycle: Callable[[], object] = lambda: None
        self.at_rest = AT_REST
        self.last: subprocess.CompletedProcess[bytes] | None = None
        self.environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "QINGLONG_EDGE_STATE": str(self.state),
        }

    # --- calling -----------------------------------------------------------------------------

    def command(self, *args: str | Path | bytes) -> list[str | bytes]:
        """Return the whole argument list of a call, for `subprocess` and for killing.

        The first that is a `cycle` waits for the end of the long one, where there is one.
        """
        if "cycle" in args:
            self.before_cycle()
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

    def start(self, *args: str | Path, stderr: int | None = None) -> "subprocess.Popen[bytes]":
        """Begin a call and wait for nothing."""
        return subprocess.Popen(
            self.command("--json", *args),
            env=self.environment(),
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )

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

    def actions(self, *words: str, agent: str | None = None) -> list[str]:
        """List the ids of the case's own actions."""
        return own(self.run("action", "list", *words, agent=agent)["items"])


def one_object(data: bytes, told: str) -> Json:
    """Return the one JSON object on the one line that `data` is."""
    assert data.endswith(b"\n"), told
    assert data.count(b"\n") == 1, told
    value = json.loads(data)
    assert isinstance(value, dict), told
    return value


def own(rows: Sequence[Json]) -> list[str]:
    """Return the ids of actions that a case made: of all but the long cycle's."""
    return [row["approval_request_id"] for row in rows if row["approval_request_id"] != LONG]


def shell_plan(*argv: str, **params: Any) -> Json:
    """Return the plan file of a `shell.exec`."""
    return {
        "schema_version": 1,
        "action_type": "shell.exec",
        "params": {"argv": list(argv) or ["/bin/true"], **params},
    }


def until(true: Callable[[], object], told: str = "what was waited for never came") -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            pytest.fail(told)
        time.sleep(0.01)


# --- who owns the state ------------------------------------------------------------------------


@contextmanager
def serving(edge: Edge, *words: str, expect: int = 0) -> Iterator["subprocess.Popen[bytes]"]:
    """Have a daemon own the state until the block ends, and prove how it ended."""
    with edge.events.open("ab") as stream:
        before = edge.events.read_bytes().count(LISTENING)
        daemon = edge.start("serve", *words, stderr=stream.fileno())
    try:
        until(lambda: edge.events.read_bytes().count(LISTENING) > before or daemon.poll())
        assert daemon.poll() is None, edge.events.read_text()
        yield daemon
    finally:
        if daemon.poll() is None:
            daemon.terminate()
        out, _ = daemon.communicate(timeout=DEADLINE_S)
    assert daemon.returncode == expect, (daemon.returncode, out, edge.events.read_text())


def long_plan(gate: Path) -> Json:
    """Return the plan of an action that says that it began, and waits for its release."""
    script = "touch began; until test -e released; do sleep 0.02; done"
    return shell_plan("/bin/sh", "-c", script, cwd=str(gate), timeout_ms=1000 * DEADLINE_S)


@contextmanager
def cycling(edge: Edge, gate: Path) -> Iterator[None]:
    """Have a cycle with the long action own the state, until a case's own cycle or its end."""
    for name in ("began", "released"):
        (gate / name).unlink(missing_ok=True)
    cycle = edge.start("cycle", stderr=subprocess.STDOUT)

    def end() -> None:
        edge.before_cycle, edge.at_rest = (lambda: None), AT_REST
        (gate / "released").touch()
        cycle.wait(timeout=DEADLINE_S)

    try:
        until(lambda: (gate / "began").exists() or cycle.poll() is not None)
        edge.before_cycle, edge.at_rest = end, (10, "converging")
        assert (edge.state / "control.sock").exists(), "the long cycle does not listen"
        yield
    finally:
        end()
        out, _ = cycle.communicate()
    assert one_object(out, str(out))["dispatch"]["succeeded"] == 1, out


def meanwhile(edge: Edge, gate: Path) -> AbstractContextManager[object]:
    """Return what owns the state during a case."""
    way = os.environ.get(WAY, "")
    if way == "serve":
        return serving(edge)
    return cycling(edge, gate) if way == "cycle" else nullcontext()


def pytest_configure() -> None:
    """Refuse a way that is none; its cases would silently be those of the usual one."""
    if os.environ.get(WAY, "") not in WAYS:
        raise pytest.UsageError(f"{WAY} is none of {WAYS}")


# --- fixtures ----------------------------------------------------------------------------------


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
    if os.environ.get(WAY) == "cycle":
        made.propose(long_plan(made.home), "--id", LONG)
        made.approve(LONG)
    return made.home


@pytest.fixture
def ready(tmp_path: Path, _template: Path, request: pytest.FixtureRequest) -> Iterator[Edge]:
    """Return a program with a state, a logged-in owner `ana` and an agent `bot`."""
    for mark in request.node.iter_markers("alone"):
        if os.environ.get(WAY) in mark.args:
            pytest.skip(f"not by {os.environ[WAY]}: {mark.kwargs['reason']}")
    shutil.copytree(_template, tmp_path, dirs_exist_ok=True, copy_function=shutil.copy2)
    edge = Edge(tmp_path)
    with meanwhile(edge, _template):
        yield edge
