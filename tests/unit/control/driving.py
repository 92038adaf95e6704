"""A loop that drives a server, clients in bytes, and children with another uid."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from qinglong_edge.commands.engine import Answer, Caller
from qinglong_edge.control import address
from qinglong_edge.control.protocol import Part, Request, decode_part, encode_request
from qinglong_edge.control.server import ControlServer, Hooks, Settled
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.ports.ambient import Clocks
from tests.support.clock import FakeClocks

Got = TypeVar("Got")
WAIT_S = 10.0
NOBODY = 65_534


def echo(command: str, args: JsonObject, caller: Caller, uid: int) -> Answer:
    return Answer({"command": command, "args": args, "uid": uid, **caller._asdict()})


class Loop:
    """Drive one server in a thread, as the daemon's loop would."""

    def __init__(
        self,
        path: str,
        carry: Callable[[str, JsonObject, Caller, int], Answer] = echo,
        *,
        state_uid: int | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self.path = path
        self.clocks = clocks or FakeClocks()
        self.cycles: list[Settled] = []
        self.place = address.listen(path, state_dir="/nowhere")
        self._soon: deque[Callable[[], None]] = deque()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        self.server = ControlServer(
            self.place.listener,
            os.getuid() if state_uid is None else state_uid,
            Hooks(carry, self.cycles.append, self.call_soon),
            self.clocks,
        )
        self.turns = 0
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def call_soon(self, work: Callable[[], None]) -> None:
        self._soon.append(work)
        with contextlib.suppress(OSError):
            os.write(self._wake_out, b"!")

    def ask(self, work: Callable[[], Got]) -> Got:
        """Run `work` in the loop's thread and return what it returned."""
        done = threading.Event()
        got: list[Got] = []

        def run() -> None:
            got.append(work())
            done.set()

        self.call_soon(run)
        assert done.wait(WAIT_S), "the loop is blocked"
        return got[0]

    def until(self, fact: Callable[[], bool]) -> None:
        """Let the loop turn until the fact is true in its thread."""
        poll = select.poll()
        for _ in range(int(WAIT_S * 200)):
            if self.ask(fact):
                return
            poll.poll(5)
        raise AssertionError("it did not come to that")

    def advance(self, ms: int) -> None:
        assert isinstance(self.clocks, FakeClocks)
        self.ask(lambda: self.clocks.advance(ms))  # type: ignore[attr-defined]
        self.ask(lambda: None)

    def stages(self) -> list[str]:
        return self.ask(
            lambda: sorted(each.stage.value for each in self.server._connections.values())
        )

    def close(self, grace_ms: int = 2_000) -> bool:
        ended = self.ask(lambda: self.server.close(grace_ms))
        self.place.remove()
        self._over = True
        self.call_soon(lambda: None)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        os.close(self._wake_in)
        os.close(self._wake_out)
        return ended

    def _run(self) -> None:
        while not self._over:
            self.turns += 1
            poll = select.poll()
            poll.register(self._wake_in, select.POLLIN)
            for fd, mask in self.server.interests():
                poll.register(fd, mask)
            for fd, mask in poll.poll(1_000):
                if fd == self._wake_in:
                    os.read(fd, 4_096)
                else:
                    self.server.ready(fd, mask)
            while self._soon:
                self._soon.popleft()()
            deadline_ms = self.server.next_deadline_ms()
            now_ms = self.clocks.monotonic_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self.server.expire(now_ms)


class Gate:
    """Carry commands that wait until the test lets them go."""

    def __init__(self) -> None:
        self.began: list[tuple[str, int]] = []
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, command: str, args: JsonObject, caller: Caller, uid: int) -> Answer:
        self.began.append((str(args.get("name", command)), uid))
        self.entered.release()
        assert self.open.wait(WAIT_S)
        return echo(command, args, caller, uid)


def connected(path: str, data: bytes = b"") -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)  # waits for its place in the backlog
    sock.settimeout(WAIT_S)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(data)  # the server may have answered and closed already
    return sock


def line(command: str = "status", /, **args: Any) -> bytes:
    return encode_request(Request(command, args))


def heard(sock: socket.socket) -> bytes:
    """Return everything until the end; a reset after the answer is an end, too."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65_536):
            data += piece
    sock.close()
    return data


def parts(data: bytes) -> list[Part]:
    return [decode_part(each) for each in data.splitlines(keepends=True)]


def told(sock: socket.socket) -> tuple[int, Any]:
    """Return exit code and body of the answer."""
    found = parts(heard(sock))
    assert found, "no answer"
    return found[0].exit_code, json.loads("".join(part.text for part in found))


def refusal(sock: socket.socket) -> tuple[int, str]:
    code, body = told(sock)
    return code, body["error"]["code"]


CHILD = """
import os, socket, sys
uid, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
data = bytes.fromhex(sys.argv[4])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
held = []
for _ in range(count):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    try:
        sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        pass
    held.append(sock)
print("there", flush=True)
for word in sys.stdin:
    for sock in held:
        text = b""
        try:
            while piece := sock.recv(65536):
                text += piece
        except ConnectionResetError:
            pass
        print(text.hex(), flush=True)
"""


class Stranger:
    """Hold a child of another uid with some connections."""

    def __init__(self, path: str, count: int, data: bytes = b"", uid: int = NOBODY) -> None:
        self.count = count
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-c", CHILD, str(uid), path, str(count), data.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == "there\n"

    def answers(self) -> list[list[Part]]:
        """Read every connection to its end."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("read\n")
        self._child.stdin.flush()
        return [parts(bytes.fromhex(self._child.stdout.readline())) for _ in range(self.count)]

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


@contextlib.contextmanager
def stranger(path: str, count: int, data: bytes = b"", *, uid: int = NOBODY) -> Iterator[Stranger]:
    """Open the socket to everybody, and give it a child of another uid."""
    Path(path).chmod(0o666)
    child = Stranger(path, count, data, uid)
    try:
        yield child
    finally:
        child.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
