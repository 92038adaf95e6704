"""Play the whole story on the real engine with real processes, in a directory that is then removed.

One action is proposed, approved and executed. Another is killed in the middle, together with the
runtime; the next cycle does not run it again, and says that nobody knows how it ended.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from types import FrameType

from qinglong_edge.commands.engine import Answer
from qinglong_edge.domain.canonical import Json, JsonObject
from qinglong_edge.domain.errors import InvariantBroken, UnavailableError
from qinglong_edge.executor import program
from qinglong_edge.ports.ambient import Entropy

_WAIT_S = 20.0
_POLL_S = 0.02
_LONG = "echo run >> {marks}; echo $$ > {pid}; exec sleep 60"


class Story:
    """Tell the story in one directory, and end every process that it started."""

    def __init__(self, directory: str) -> None:
        """Take an empty directory that belongs to the story."""
        self._directory = directory
        self._state = os.path.join(directory, "state")
        self.lines: list[Json] = []

    def tell(self) -> None:
        """Play all scenes; raises `InvariantBroken` where the engine does not keep its word."""
        self._prepare()
        self._one_action_done()
        self._one_action_killed()

    def _prepare(self) -> None:
        self._write("password", "demo-only-password\n")
        self._edge("init", "--owner", "ana", "--password-file", self._at("password"),
                   "--enable", "shell.exec", "--volatile")  # fmt: skip
        self._edge("login", "ana", "--password-file", self._at("password"))
        agent = self._edge("agent", "add", "script", "--role", "operator")
        self._write("token", str(agent["token"]))
        self._say("A user `ana` (owner) and an agent `script` (operator) exist.")

    def _one_action_done(self) -> None:
        self._say("")
        self._say("1. The agent proposes, a person approves the digest, the runtime executes.")
        shown = self._propose("first", ["/bin/sh", "-c", f"echo hello > {self._at('hello')}"])
        digest = str(shown["action_digest"])
        self._say(f"   proposed   {digest[:16]}...  {shown['risk']} risk, pending")
        request = str(shown["approval_request_id"])
        done = self._edge("action", "approve", request, "--action-digest", digest)
        self._say(f"   approved   dispatch {done['dispatch_id']}")
        self._edge("cycle")
        self._expect(request, "succeeded")
        self._say(f"   executed   the file says: {self._read('hello')}")

    def _one_action_killed(self) -> None:
        self._say("")
        self._say("2. The power goes in the middle of an action (here: kill -9 of the runtime).")
        marks, pid = self._at("marks"), self._at("pid")
        shown = self._propose(
            "second", ["/bin/sh", "-c", _LONG.format(marks=marks, pid=pid)], timeout_ms=60_000
        )
        request = str(shown["approval_request_id"])
        self._edge("action", "approve", request)
        runtime = self._spawn("cycle")
        try:
            self._wait_for(pid)
        finally:
            runtime.kill()
            runtime.wait()
            self._end_action(pid)
        self._say("   killed     after the start barrier, before any result")
        self._edge("cycle")
        self._edge("cycle")
        runs = self._read("marks").count("run")
        if runs != 1:
            raise InvariantBroken(f"an action ran {runs} times")
        self._expect(request, "recovery_required")
        self._say("   restarted  two more cycles: it ran once and is not run again")
        waiting = self._edge("recovery", "list", "--queue", "due")
        items = waiting["items"]
        if not isinstance(items, list) or len(items) != 1:
            raise InvariantBroken("the recovery queue does not hold the killed action")
        self._say("   state      recovery_required: nobody knows how it ended, so nobody guesses")
        self._say("")
        self._say("One action done, one waiting for a person. Nothing ran twice.")

    def _propose(self, name: str, argv: list[str], *, timeout_ms: int = 10_000) -> JsonObject:
        plan = {
            "schema_version": 1,
            "action_type": "shell.exec",
            "params": {"argv": argv, "timeout_ms": timeout_ms},
        }
        self._write(f"{name}.json", json.dumps(plan))
        return self._edge("action", "propose", self._at(f"{name}.json"), agent=True)

    def _expect(self, request: str, state: str) -> None:
        seen = self._edge("action", "show", request)["effective_state"]
        if seen != state:
            raise InvariantBroken(f"an action is {seen} instead of {state}")

    def _edge(self, *words: str, agent: bool = False) -> JsonObject:
        done = subprocess.run(
            self._command(words, agent=agent), capture_output=True, check=False, env=self._env()
        )
        if done.returncode not in {0, 10, 20}:
            code = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise InvariantBroken(f"{words[0]} ended with {done.returncode}: {code}")
        body = json.loads(done.stdout)
        if not isinstance(body, dict):
            raise InvariantBroken(f"{words[0]} printed no object")
        return body

    def _spawn(self, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._command(words, agent=False),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._env(),
        )

    def _command(self, words: tuple[str, ...], *, agent: bool) -> list[str]:
        """Start the same interpreter on the same program, archive or tree."""
        who = ["--token-file", self._at("token")] if agent else []
        return [*program.command("cli.main", "run"), "--json", "--state", self._state, *who, *words]

    def _env(self) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}

    def _wait_for(self, path: str) -> None:
        """Wait until the action wrote its process id, whole: then it really runs."""
        tries = int(_WAIT_S / _POLL_S)
        for _ in range(tries):
            if os.path.exists(path) and os.path.getsize(path) > 1:
                return
            time.sleep(_POLL_S)
        raise InvariantBroken("the second action never started")

    def _end_action(self, path: str) -> None:
        """End the process group that the killed runtime left behind."""
        if os.path.exists(path) and (text := self._read("pid")):
            with suppress(ProcessLookupError):
                os.killpg(int(text), signal.SIGKILL)

    def _at(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _read(self, name: str) -> str:
        with open(self._at(name), encoding="utf-8") as file:
            return file.read().strip()

    def _write(self, name: str, text: str) -> None:
        descriptor = os.open(self._at(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)

    def _say(self, line: str) -> None:
        self.lines.append(line)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def demo(temporary_root: str, entropy: Entropy) -> Answer:
    """Play the story below `temporary_root` and remove what it made, however it ends.

    Raises `UnavailableError` (`demo_failed`) where that place cannot be written.
    """
    directory = os.path.join(temporary_root, f"qinglong-edge-demo-{entropy(8).hex()}")
    story = Story(directory)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        os.mkdir(directory, 0o700)
        story.tell()
    except OSError as error:
        raise UnavailableError(
            "demo_failed", f"the demo cannot work in {temporary_root}; name another with TMPDIR"
        ) from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
    return Answer({"lines": story.lines})
