"""The owner's side of the socket: many peers in one loop that never waits for any of them.

The loop (`runtime.poll_host`) asks for `interests`, tells what is `ready` and what time it is. All
of this class runs in the loop's thread, apart from `_carried`, which runs in the worker's. The
loop keeps the queue and gives the worker one command at a time; a peer that hangs up before its
command began takes it along, one that hangs up later only misses the answer.

`cycle` holds no place in the queue and has no deadline: its peer is parked until the cycle settles.
The state's owner and root may always ask for one; another peer, or one of these two that shows a
token and so is whom the token names, is first judged by a command `cycle` that `carry` only
authorizes.
"""

import select
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from qinglong_edge.commands.engine import Answer, Caller
from qinglong_edge.commands.table import TABLE
from qinglong_edge.control import protocol
from qinglong_edge.control.connection import Connection, GoneError, Stage, peer_uid
from qinglong_edge.control.protocol import Request
from qinglong_edge.control.worker import Done, Job, Worker
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.errors import QinglongError, UnavailableError, UsageError
from qinglong_edge.ports.ambient import Clocks

# Half is what strangers share; a quarter is left to the state's owner and one to root, so that no
# flood of others locks out either of these two. Parked peers are counted apart.
CONNECTIONS_MAX = 64
CONNECTIONS_PER_UID_MAX = 16
STRANGERS_MAX = 32
QUEUE_MAX = 32  # commands of some milliseconds each: the last waits less than its client does
QUEUE_STRANGERS_MAX = 16
PARKED_MAX = 16  # one cycle answers all of them; more callers than this are a loop gone wild
PARKED_STRANGERS_MAX = 8
UNREAD_BYTES_MAX = 2_097_152  # of one uid's answers: then its next command waits for its reading
READ_MS = 5_000  # for at most 64 KiB from this machine: whoever needs longer has stopped
WRITE_MS = 5_000
ACCEPTS_AT_ONCE = 16  # then those who are connected have their turn
ACCEPT_PAUSE_MS = 200  # when descriptors are used up: the loop must not spin on who waits
FLUSH_MS = 20  # one look at the worker while the last answers are written

CYCLE = "cycle"
SLOW = frozenset({"login", "user.add"})  # stretch passwords: nobody else waits for that
_ROOT = 0
_OWNER = Caller(None, None, is_state_owner=True)

Carry = Callable[[str, JsonObject, Caller, int], Answer]
Settled = Callable[[Answer | QinglongError], None]
CallSoon = Callable[[Callable[[], None]], None]


class Hooks(NamedTuple):
    """Hold what the server needs of the process around it.

    `carry` runs a command in the worker's thread and may raise `QinglongError`. `request_cycle`
    joins or asks for a cycle and later calls what it got, once, from any thread. `call_soon` runs
    something in the loop's thread; it may be called from any thread and never raises.
    """

    carry: Carry
    request_cycle: Callable[[Settled], None]
    call_soon: CallSoon


class Lane:
    """Hold one worker and the command it carries; passwords have a lane of their own."""

    def __init__(self, carried: Callable[[Job], Done], wake: Callable[[], None]) -> None:
        """Start with nothing to do."""
        self.worker = Worker(carried, wake)
        self.running: Job | None = None


class ControlServer:
    """Serve one listening socket until `close`."""

    def __init__(
        self, listener: socket.socket, state_uid: int, hooks: Hooks, clocks: Clocks
    ) -> None:
        """Take over a bound, listening unix socket."""
        listener.setblocking(False)
        self._listener: socket.socket | None = listener
        self._state_uid = state_uid
        self._hooks = hooks
        self._clocks = clocks
        self._lanes = (Lane(self._carried, self._wake), Lane(self._carried, self._wake))
        self._connections: dict[int, Connection] = {}
        self._queue: list[Job] = []
        self._served: dict[int, int] = {}
        self._turn = 0
        self._accept_at_ms = 0

    def interests(self) -> Iterator[tuple[int, int]]:
        """Yield each descriptor with what to poll it for."""
        if self._listener is not None and self._accept_at_ms == 0:
            yield self._listener.fileno(), select.POLLIN
        for connection in self._connections.values():
            yield connection.fd, connection.mask()

    def ready(self, fd: int, mask: int) -> None:
        """Go on with one descriptor; one that is not ours any more is passed over."""
        if self._listener is not None and fd == self._listener.fileno():
            self._accept(self._listener)
            return
        connection = self._connections.get(fd)
        if connection is None:
            return
        if connection.stage is Stage.READING:
            self._read(connection)
        elif connection.stage is Stage.WRITING:
            self._write(connection)
        elif mask & (select.POLLHUP | select.POLLERR) and connection.has_hung_up():
            self._drop(connection)  # asked again: the event may be that of an earlier descriptor

    def next_deadline_ms(self) -> int | None:
        """Return the monotonic time at which `expire` has something to do."""
        found = [each.deadline_ms for each in self._connections.values()]
        deadlines = [each for each in found if each is not None]
        if self._accept_at_ms:
            deadlines.append(self._accept_at_ms)
        return min(deadlines, default=None)

    def expire(self, now_ms: int) -> None:
        """Drop who was too slow."""
        if self._accept_at_ms <= now_ms:
            self._accept_at_ms = 0
        for connection in list(self._connections.values()):
            if connection.deadline_ms is not None and connection.deadline_ms <= now_ms:
                self._drop(connection)

    def close(self, grace_ms: int) -> bool:
        """Stop accepting, answer whoever waits `owner_stopping`, and close everything.

        The command that runs has `grace_ms` to end and its answer to be read. Tells whether it
        ended; where it did not, its thread still works on the store.
        """
        self._stop_listening()
        stopping = UnavailableError("owner_stopping", "the owner of the state is stopping")
        self._queue.clear()
        for connection in list(self._connections.values()):
            if connection.stage is Stage.READING:
                self._drop(connection)
            elif connection.stage in {Stage.QUEUED, Stage.PARKED}:
                self._answer(connection, *protocol.text_of(stopping))
        for lane in self._lanes:
            lane.worker.stop()
        end_ms = self._clocks.monotonic_ms() + grace_ms
        ended = self._joined(0)
        while not ended or self._connections:
            self._flush()
            if self._clocks.monotonic_ms() >= end_ms:
                break
            ended = self._joined(0 if ended else FLUSH_MS)
        for connection in list(self._connections.values()):
            self._drop(connection)
        return ended

    def _flush(self) -> None:
        """Collect what the worker has done, and write what the peers take within a moment."""
        self._collect()
        poll = select.poll()
        writing = [each for each in self._connections.values() if each.stage is Stage.WRITING]
        for connection in writing:
            poll.register(connection.fd, select.POLLOUT)
        for fd, mask in poll.poll(FLUSH_MS) if writing else ():
            self.ready(fd, mask)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError:
                self._accept_at_ms = self._clocks.monotonic_ms() + ACCEPT_PAUSE_MS
                return
            sock.setblocking(False)
            uid = peer_uid(sock)
            deadline_ms = self._clocks.monotonic_ms() + READ_MS
            connection = Connection(sock, uid, deadline_ms)
            full = self._full(uid)
            self._connections[connection.fd] = connection
            if full:
                self._refuse(connection)

    def _full(self, uid: int) -> bool:
        """Tell whether one more connection of this uid is over a bound."""
        here = [each.uid for each in self._connections.values() if each.stage is not Stage.PARKED]
        if len(here) >= CONNECTIONS_MAX or here.count(uid) >= CONNECTIONS_PER_UID_MAX:
            return True
        return self._is_stranger(uid) and self._strangers(here) >= STRANGERS_MAX

    def _refuse(self, connection: Connection) -> None:
        """Answer at once, as far as the peer takes it at once."""
        busy = UnavailableError("owner_busy", "too many callers at once; try again")
        self._answer(connection, *protocol.text_of(busy))
        if connection.stage is not Stage.CLOSED:
            self._drop(connection)

    def _read(self, connection: Connection) -> None:
        try:
            line = connection.read()
            if line is not None:
                self._admit(connection, protocol.decode_request(line))
        except GoneError:
            self._drop(connection)
        except QinglongError as error:
            self._answer(connection, *protocol.text_of(error))

    def _admit(self, connection: Connection, request: Request) -> None:
        """Queue a command or park for a cycle; the deadline of reading is over."""
        uid = connection.uid
        if request.command != CYCLE and request.command not in TABLE:
            raise UsageError("not_served", "this command does not go through the socket")
        caller = Caller(
            request.session_token, request.agent_token, is_state_owner=not self._is_stranger(uid)
        )
        job = Job(connection, request, caller)
        if request.command == CYCLE and request.args:
            raise protocol.protocol_error("request.args: a cycle takes none")
        if request.command == CYCLE and caller == _OWNER:
            self._park(connection)
            return
        queued = [each.connection.uid for each in self._queue]
        strangers = self._is_stranger(uid) and self._strangers(queued) >= QUEUE_STRANGERS_MAX
        if len(queued) >= QUEUE_MAX or strangers:
            raise UnavailableError("owner_busy", "too many commands wait; try again")
        connection.stage, connection.deadline_ms = Stage.QUEUED, None
        self._queue.append(job)
        self._feed()

    def _feed(self) -> None:
        """Give each free lane its next command: of the uid whose last turn is longest ago."""
        for slow, lane in enumerate(self._lanes):
            ready = [
                job
                for job in self._queue
                if (job.request.command in SLOW) == bool(slow)
                and self._unread(job.connection.uid) <= UNREAD_BYTES_MAX
            ]
            if lane.running is None and ready:
                self._begin(lane, min(ready, key=self._last_turn))

    def _last_turn(self, job: Job) -> int:
        return self._served.get(job.connection.uid, 0)

    def _begin(self, lane: "Lane", job: Job) -> None:
        self._queue.remove(job)
        self._turn += 1
        self._served[job.connection.uid] = self._turn
        job.connection.stage = Stage.RUNNING
        lane.running = job
        lane.worker.give(job)

    def _joined(self, wait_ms: int) -> bool:
        """Tell whether no lane is at work any more, waiting for each at most so long."""
        ended = [lane.worker.join(wait_ms) for lane in self._lanes]
        return all(ended)

    def _carried(self, job: Job) -> Done:
        """Carry out one command, in the worker's thread; every end of it is an answer."""
        request = job.request
        result: Answer | QinglongError
        try:
            result = self._hooks.carry(
                request.command, request.args, job.caller, job.connection.uid
            )
            return Done(job, *protocol.text_of(result))
        except QinglongError as error:
            result = error
        except BaseException:  # noqa: BLE001  # a bug answers its caller, and the daemon lives on
            result = _internal_error()
        try:
            return Done(job, *protocol.text_of(result))
        except (TypeError, ValueError, RecursionError):  # an error with foreign details
            return Done(job, *protocol.text_of(_internal_error()))

    def _wake(self) -> None:
        self._hooks.call_soon(self._collect)

    def _collect(self) -> None:
        """Answer what the worker has done, in the loop's thread."""
        for lane in self._lanes:
            while (done := lane.worker.collect()) is not None:
                lane.running = None
                if done.job.connection.stage is Stage.RUNNING:
                    self._finish(done)
        self._feed()

    def _finish(self, done: Done) -> None:
        connection = done.job.connection
        allowed = done.exit_code in protocol.EXITS_DONE
        if done.job.request.command != CYCLE or not allowed:
            self._answer(connection, done.exit_code, done.text)
            return
        try:
            self._park(connection)
        except QinglongError as error:
            self._answer(connection, *protocol.text_of(error))

    def _park(self, connection: Connection) -> None:
        """Let a peer wait for the cycle that runs, or for the next one."""
        parked = [each.uid for each in self._connections.values() if each.stage is Stage.PARKED]
        stranger = self._is_stranger(connection.uid)
        over = stranger and self._strangers(parked) >= PARKED_STRANGERS_MAX
        if len(parked) >= PARKED_MAX or over or self._listener is None:
            raise UnavailableError("owner_busy", "too many callers wait for a cycle; try again")
        connection.stage, connection.deadline_ms = Stage.PARKED, None
        self._hooks.request_cycle(partial(self._settled, connection))

    def _settled(self, connection: Connection, result: Answer | QinglongError) -> None:
        """Take the end of a cycle, in whatever thread it is told."""
        self._hooks.call_soon(partial(self._unpark, connection, result))

    def _unpark(self, connection: Connection, result: Answer | QinglongError) -> None:
        if connection.stage is Stage.PARKED:
            self._answer(connection, *protocol.text_of(result))

    def _answer(self, connection: Connection, exit_code: int, text: bytes) -> None:
        """Begin to answer; what fits into the kernel's buffer is gone at once."""
        connection.answer(exit_code, text, self._clocks.monotonic_ms() + WRITE_MS)
        self._write(connection)

    def _write(self, connection: Connection) -> None:
        try:
            if connection.write():
                self._drop(connection)
        except GoneError:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        """Forget a peer, with its command if that has not begun."""
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
        connection.close()
        self._queue = [job for job in self._queue if job.connection is not connection]
        if all(each.uid != connection.uid for each in self._connections.values()):
            self._served.pop(connection.uid, None)
        self._feed()

    def _unread(self, uid: int) -> int:
        return sum(each.unread_bytes for each in self._connections.values() if each.uid == uid)

    def _is_stranger(self, uid: int) -> bool:
        return uid not in {self._state_uid, _ROOT}

    def _strangers(self, uids: list[int]) -> int:
        return sum(map(self._is_stranger, uids))


def _internal_error() -> QinglongError:
    """Return the answer to a bug, without a word of it: its text may hold anything."""
    return QinglongError("internal_error", "a bug in this program stopped the command")
