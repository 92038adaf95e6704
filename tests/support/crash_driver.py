"""Run real commands on a state directory, and die by SIGKILL where the orders say.

    python -P -m tests.support.crash_driver [ORDERS]

ORDERS is one JSON line; without it, lines of directory and orders come by stdin, and each gets a
child forked from this process, which has imported everything and opened nothing. Every command goes
through the real wiring; every answer is one JSON line, printed before the next command begins, so
that what was printed is what was acknowledged. Like the real entry it leaves without closing what
it wrote. The file `points` in the working directory gains one line for each crash point before
anything else happens there.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from typing import Any, NamedTuple

from qinglong_edge.cli import wiring
from qinglong_edge.cli.request import Options, Request, Streams, Surroundings
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.table import TABLE, Access, Entry
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.decisions import Replayed
from qinglong_edge.domain.errors import QinglongError, RefusedError, exit_code_of
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType
from qinglong_edge.domain.recovery import Decision, RecoveryRefusal
from qinglong_edge.domain.resolution import ResolveByPerson
from qinglong_edge.domain.tick import Reading
from qinglong_edge.executor.ambient import SystemClocks, system_entropy
from qinglong_edge.ports.probe import CrashPoint
from tests.support.crash_faults import FAULTS, WAYS

POINTS = "points"
ANSWERS = "answers"
COMPLAINTS = "complaints"
BY_PERSON = "test.by_person"  # through the ports, as strongly as no test can log in
ANY = "any"
FILES = "files"  # not a crash point of the program: its calls that make, replace or remove a file


class Spot(NamedTuple):
    """Name the n-th passing of a crash point; the moment `any` counts all of them."""

    moment: str
    step: str
    nth: int = 1


class Shift(NamedTuple):
    """Say how far the clocks are from this machine's, and which boot it is."""

    wall_ms: int = 0
    boot_ms: int = 0
    monotonic_ms: int = 0
    boot_id: str | None = None


class Call(NamedTuple):
    """Hold one command as the command line would ask for it."""

    command: str
    args: dict[str, Any]
    token_file: str | None = None


class Orders(NamedTuple):
    """Hold what one child does, and what happens to it on the way."""

    state: str
    calls: tuple[Call, ...]
    kill: Spot | None = None
    clock: Shift = Shift()
    jumps: tuple[tuple[Spot, Shift], ...] = ()
    runs: tuple[tuple[Spot, str], ...] = ()
    fault: str | None = None
    way: str | None = None


def read_orders(text: str) -> Orders:
    """Return what `json.dumps` made of orders."""
    state, calls, kill, clock, jumps, runs, fault, way = json.loads(text)
    return Orders(
        state,
        tuple(Call(*call) for call in calls),
        None if kill is None else Spot(*kill),
        Shift(*clock),
        tuple((Spot(*spot), Shift(*shift)) for spot, shift in jumps),
        tuple((Spot(*spot), command) for spot, command in runs),
        fault,
        way,
    )


class ShiftedClocks:
    """Answer `ports.ambient.Clocks`: real time flows, from another beginning."""

    def __init__(self, shift: Shift) -> None:
        self._real = SystemClocks()
        self._shift = shift

    def read(self) -> Reading:
        real, shift = self._real.read(), self._shift
        boot_id = shift.boot_id or real.boot_id
        return Reading(real.wall_ms + shift.wall_ms, real.boot_ms + shift.boot_ms, boot_id)

    def monotonic_ms(self) -> int:
        return self._real.monotonic_ms() + self._shift.monotonic_ms

    def jump(self, more: Shift) -> None:
        """Move the clocks, as a person, NTP or a sleeping machine would."""
        old = self._shift
        self._shift = Shift(
            old.wall_ms + more.wall_ms,
            old.boot_ms + more.boot_ms,
            old.monotonic_ms + more.monotonic_ms,
            more.boot_id or old.boot_id,
        )


class Watch:
    """Be the probe: write down every point, then do there what the orders say."""

    def __init__(self, orders: Orders, clocks: ShiftedClocks) -> None:
        self._orders = orders
        self._clocks = clocks
        self._passed: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(POINTS, flags, 0o600)

    def __call__(self, point: CrashPoint, /) -> None:
        self._pass(point.moment.value, point.step.value)

    def audit(self, event: str, args: tuple[object, ...]) -> None:
        """Take the interpreter's own word for what it is about to do to a file."""
        if event == "open":
            flags = args[2] if len(args) > 2 and isinstance(args[2], int) else 0
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event not in _FILE_EVENTS:
            return
        self._pass(FILES, event)

    def _pass(self, moment: str, step: str) -> None:
        with self._lock:
            self._passed[moment, step] += 1
            kind = FILES if moment == FILES else ANY
            self._passed[kind, ANY] += 1
        os.write(self._file, f"{moment} {step}\n".encode())
        for spot, shift in self._orders.jumps:
            if self._is_at(spot, moment, step):
                self._clocks.jump(shift)
        for spot, command in self._orders.runs:
            if self._is_at(spot, moment, step):
                subprocess.run(["/bin/sh", "-c", command], check=True, stdin=subprocess.DEVNULL)
        if self._orders.kill is not None and self._is_at(self._orders.kill, moment, step):
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_at(self, spot: Spot, moment: str, step: str) -> bool:
        every = spot.step == ANY and spot.moment == (FILES if moment == FILES else ANY)
        here = every or (spot.moment, spot.step) == (moment, step)
        return here and self._passed[spot.moment, spot.step] == spot.nth


_FILE_EVENTS = frozenset(
    {"os.mkdir", "os.chmod", "os.rename", "os.remove", "os.link", "os.truncate", "sqlite3.connect"}
)


def by_person(engine: Engine, _caller: Caller, args: JsonObject) -> Answer:
    """Take the word of the owner, who proves themselves strongly at this very moment."""
    ana = Subject(SubjectType.USER, engine.facts.owner)
    project, binding = engine.policy.resolve(engine.facts.project_id, ana)
    if project is None or binding is None:
        raise RefusedError("not_allowed", "the owner is not there any more")
    now = engine.overview.instant().now
    version = args["version"]
    event = ResolveByPerson(
        str(args["id"]), version if isinstance(version, int) else 0, None,
        str(args["mutation_id"]), Decision(str(args["decision"])), "looked_myself", None,
        Principal(ana, Assurance.MULTI_FACTOR, "ses-0", now.at_ms, now.tick),
        PolicyFence(project.version, binding.version), unprobed=False,
    )  # fmt: skip
    answer = engine.recoveries.resolve_by_person(event)
    if isinstance(answer, RecoveryRefusal):
        raise RefusedError(answer.value, "the outcome cannot be settled so")
    return Answer({"replayed": isinstance(answer, Replayed)})


def _answer(orders: Orders, call: Call, surroundings: Surroundings) -> JsonObject:
    options = Options(state=orders.state, json=True, token_file=call.token_file)
    try:
        answer = wiring.carry(Request(call.command, call.args, options), surroundings)
    except QinglongError as error:
        return {"command": call.command, "exit": exit_code_of(error), "error": error.code}
    return {"command": call.command, "exit": answer.exit_code, "body": answer.body}


def main(orders: Orders) -> None:
    """Carry every call, in order."""
    TABLE[BY_PERSON] = Entry(by_person, Access.WRITE)
    if orders.way is not None:
        WAYS[orders.way]()
    if orders.fault is not None:
        FAULTS[orders.fault]()
    clocks = ShiftedClocks(orders.clock)
    watch = Watch(orders, clocks)
    streams = Streams(sys.stdin.buffer, sys.stdout, sys.stderr, False, False)
    surroundings = Surroundings(streams, {}, clocks, system_entropy, watch)
    if orders.kill is not None and orders.kill.moment == FILES:
        sys.addaudithook(watch.audit)
    for call in orders.calls:
        answer = _answer(orders, call, surroundings)
        os.write(1, json.dumps(answer).encode() + b"\n")
    os._exit(0)


def serve() -> None:
    """Fork one child a line, in its directory; answer its process id, then how it ended."""
    for line in sys.stdin:
        directory, orders = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                os.chdir(directory)
                for number, name in enumerate((os.devnull, ANSWERS, COMPLAINTS)):
                    flags = os.O_RDWR if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                    os.dup2(os.open(name, flags, 0o600), number)
                main(read_orders(orders))
            except BaseException:  # noqa: BLE001 - a fork must never return into its parent's loop
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        os.write(1, f"{child}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, f"{status}\n".encode())


class Nursery:
    """Be the other end of `serve`: one process that forks every child of a suite."""

    def __init__(self, argv: list[str], environment: dict[str, str], *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._server = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a buffer would hide the second line from `select`
        )

    def run(self, directory: str, orders: Orders) -> int:
        """Run one child to its end and return its exit code, negative for a signal."""
        stdin, stdout = self._server.stdin, self._server.stdout
        if stdin is None or stdout is None:
            raise ValueError("the nursery has no pipes")
        stdin.write(json.dumps([directory, json.dumps(orders)]).encode() + b"\n")
        stdin.flush()
        child = int(stdout.readline())
        if not select.select([stdout.fileno()], [], [], self._patience_s)[0]:
            os.kill(child, signal.SIGKILL)
            stdout.readline()
            raise TimeoutError(f"a child did not end: {orders}")
        return int(stdout.readline())

    def close(self) -> None:
        """End the server; its children have ended before."""
        self._server.communicate()


if __name__ == "__main__":
    if sys.argv[1:]:
        main(read_orders(sys.argv[1]))
    serve()
