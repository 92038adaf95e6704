"""Play the whole story on the real engine with real processes, in a directory that is then removed.

One action is proposed, approved and executed. Two others are killed in the middle, together with
the runtime, and neither is run again: one left a receipt, and its evidence settles it; the other
left nothing that proves anything, so a person with a second factor says how it ended.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import FrameType

from qinglong_edge.commands.engine import Answer
from qinglong_edge.domain.canonical import Json, JsonObject
from qinglong_edge.domain.errors import InvariantBroken, UnavailableError
from qinglong_edge.executor import program
from qinglong_edge.ports.ambient import Entropy
from qinglong_edge.ports.probe import CrashPoint, Moment, Step

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
        self._one_settled_by_evidence()
        self._one_settled_by_a_person()
        self._say("")
        self._say("One action done, two that were cut off settled. Nothing ran twice.")

    def _prepare(self) -> None:
        self._write("password", "demo-only-password\n")
        self._edge("init", "--owner", "ana", "--password-file", self._at("password"),
                   "--enable", "shell.exec,task.publish", "--volatile")  # fmt: skip
        self._edge("login", "ana", "--password-file", self._at("password"))
        agent = self._edge("agent", "add", "script", "--role", "operator")
        self._write("token", str(agent["token"]))
        self._say("A user `ana` (owner) and an agent `script` (operator) exist.")

    def _one_action_done(self) -> None:
        self._say("")
        self._say("1. The agent proposes, a person approves the digest, the runtime executes.")
        hello = ["/bin/sh", "-c", f"echo hello > {self._at('hello')}"]
        shown = self._propose("first", "shell.exec", {"argv": hello})
        digest = str(shown["action_digest"])
        self._say(f"   proposed   {digest[:16]}...  {shown['risk']} risk, pending")
        request = str(shown["approval_request_id"])
        done = self._edge("action", "approve", request, "--action-digest", digest)
        self._say(f"   approved   dispatch {done['dispatch_id']}")
        self._edge("cycle")
        self._expect(request, "succeeded")
        self._say(f"   executed   the file says: {self._read('hello')}")

    def _one_settled_by_evidence(self) -> None:
        self._say("")
        self._say("2. The power goes behind an effect, before its result (here: kill -9).")
        task: JsonObject = {
            "schema_version": 1, "task_id": "hello", "name": "Hello", "argv": ["/bin/echo", "hello"]
        }  # fmt: skip
        shown = self._propose("publish", "task.publish", task)
        request = str(shown["approval_request_id"])
        self._edge("action", "approve", request)
        self._die_behind_effect()
        self._expect(request, "executing")
        self._say("   killed     the task is stored, and nobody recorded that it is")
        self._edge("cycle")
        self._expect(request, "succeeded")
        settled = self._edge("action", "show", request)["resolution"]
        if not isinstance(settled, dict) or settled["source"] != "automatic_evidence":
            raise InvariantBroken("an action was settled by something else than its evidence")
        tasks = self._edge("task", "list")["items"]
        if not isinstance(tasks, list) or [each["task_revision"] for each in tasks] != ["r1"]:
            raise InvariantBroken("an action on the database had its effect twice, or not at all")
        self._say(f"   evidence   its receipt proves it: {str(settled['evidence_digest'])[:16]}...")

    def _die_behind_effect(self) -> None:
        """Carry what is due in a process that dies between an effect and its result."""
        command = [*program.command("cli.demo", "die_behind_effect"), self._state]
        done = subprocess.run(command, capture_output=True, check=False, env=self._env())
        if done.returncode != -signal.SIGKILL:
            raise InvariantBroken(f"a runtime that was to die ended with {done.returncode}")

    def _one_settled_by_a_person(self) -> None:
        self._say("")
        self._say("3. The power goes in the middle of a command, which leaves no evidence.")
        marks, pid = self._at("marks"), self._at("pid")
        long = ["/bin/sh", "-c", _LONG.format(marks=marks, pid=pid)]
        shown = self._propose("second", "shell.exec", {"argv": long, "timeout_ms": 60_000})
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
        self._expect(request, "manual_required")
        self._say("   restarted  two more cycles: it ran once and is not run again")
        waiting = self._edge("recovery", "list", "--queue", "manual")["items"]
        if not isinstance(waiting, list) or len(waiting) != 1:
            raise InvariantBroken("the manual queue does not hold the killed action")
        self._say("   state      manual_required: nobody knows how it ended, so nobody guesses")
        self._settle(str(waiting[0]["dispatch_id"]))
        self._expect(request, "failed")

    def _settle(self, dispatch_id: str) -> None:
        """Have the user prove themselves with a second factor and say what they saw."""
        codes = self._edge("user", "totp", "ana")["recovery_codes"]
        if not isinstance(codes, list):
            raise InvariantBroken("a second factor came without recovery codes")
        self._write("code", f"{codes[0]}\n")
        self._edge("login", "ana", "--password-file", self._at("password"),
                   "--recovery-code", self._at("code"))  # fmt: skip
        seen = self._edge("recovery", "show", dispatch_id)["execution"]
        version = str(seen["version"]) if isinstance(seen, dict) else ""
        word = ("--decision", "confirm_failed", "--reason", "seen_cut_off")
        done = self._edge("recovery", "resolve", dispatch_id, "--expected-version", version, *word)
        self._say(
            f"   settled    {done['execution_status']}, on the word of ana, who proved herself"
        )

    def _propose(self, name: str, action_type: str, params: JsonObject) -> JsonObject:
        plan = {"schema_version": 1, "action_type": action_type, "params": params}
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


def die_behind_effect() -> None:
    """Carry due actions of the state in argv, each in commits of its own, and die behind one.

    Started by the story as a process of its own: it ends by SIGKILL between an effect on the
    database and the commit that records its result.
    """
    from qinglong_edge.cli.request import Streams, Surroundings  # noqa: PLC0415 - not of the story
    from qinglong_edge.cli.store import StateOwner  # noqa: PLC0415
    from qinglong_edge.commands.cycle import Runner  # noqa: PLC0415
    from qinglong_edge.domain.lifecycle import Cursors  # noqa: PLC0415
    from qinglong_edge.executor.ambient import SystemClocks, system_entropy  # noqa: PLC0415

    def die(point: CrashPoint) -> None:
        if point == CrashPoint(Moment.AFTER, Step.EFFECT):
            os.kill(os.getpid(), signal.SIGKILL)

    streams = Streams(sys.stdin.buffer, sys.stdout, sys.stderr, False, False)
    around = Surroundings(streams, {}, SystemClocks(), system_entropy, die)
    engine = StateOwner(sys.argv[1], around).write()
    Runner(engine, engine.registry, whole=False).run(Cursors(), lambda: False)


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
