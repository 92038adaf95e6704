"""A slim process that forks supervisors, because a daemon with threads must not fork.

It is forked from the owner before the owner has any thread, and gives up every descriptor first: an
inherited lock would outlive the owner. One order is one message over a socket that only the two
have, together with the writing end of a pipe on which the supervisor reports; a pipe that ends
without a report tells at once that nobody knows. The interpreter is not started again, so a
supervisor costs a fork, and the order is in no argument and in no environment.

It ends when the owner's end of the socket closes, however the owner ended; supervisors go on. Its
children are reaped by the kernel, because it ignores SIGCHLD.
"""

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress

from qinglong_edge.domain.errors import InvariantBroken, UnavailableError, UsageError
from qinglong_edge.executor import process
from qinglong_edge.executor.run_order import (
    NO_SPAWN,
    ORDER_BYTES_MAX,
    REPORT_BYTES_MAX,
    UNKNOWN,
    Order,
    Refused,
    Spawned,
    decode_order,
    decode_report,
    encode_order,
    encode_report,
)
from qinglong_edge.executor.supervisor_process import Site, supervise

REPORT_WAIT_MS = 10_000
SEND_WAIT_S = 5

# Not `socket.send_fds`: it loads a module when it is called, and nothing may be loaded here later.
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
_FD_BYTES = 4

_KEPT_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}  # both come back as errors of the write


class Spawner:
    """The owner's side; safe to ask from several threads at once."""

    def __init__(self, site: Site) -> None:
        """Fork; raises `UnavailableError`, and `InvariantBroken` where a thread is running."""
        if threading.active_count() > 1:
            raise InvariantBroken("the spawner must be forked before any thread")
        try:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.pid = os.fork()
                if not self.pid:
                    _serve(theirs, site)
        except OSError as error:
            raise UnavailableError("spawner_unavailable", "cannot be forked") from error
        self._socket.settimeout(SEND_WAIT_S)

    def spawn(self, order: Order, *, wait_ms: int = REPORT_WAIT_MS) -> Spawned | Refused:
        """Have one order carried; returns when the task runs or certainly does not, or is unknown.

        Raises `UsageError` for an order that is too large.
        """
        message = encode_order(order)
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return Refused(NO_SPAWN, "resources")
        try:
            self._socket.sendmsg(
                [message], [(*_RIGHTS, writing.to_bytes(_FD_BYTES, sys.byteorder))]
            )
        except OSError:  # a message is sent whole or not at all
            os.close(reading)
            return Refused(NO_SPAWN, "not_sent")
        finally:
            os.close(writing)
        try:
            return _report(reading, wait_ms)
        finally:
            os.close(reading)

    def close(self) -> None:
        """Let the spawner end and reap it; what it started goes on."""
        self._socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _report(reading: int, wait_ms: int) -> Spawned | Refused:
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    if not poller.poll(wait_ms):
        return Refused(UNKNOWN, "no_report_in_time")
    return decode_report(os.read(reading, REPORT_BYTES_MAX))


def _serve(theirs: socket.socket, site: Site) -> None:
    """Fork a supervisor for each order until the owner is gone; never returns."""
    try:
        connection = _alone(theirs)
        process.prepare()
        gc.freeze()  # a supervisor that counts references copies no page for it
        while True:
            message, rights, _, _ = connection.recvmsg(
                ORDER_BYTES_MAX, socket.CMSG_LEN(_FD_BYTES), socket.MSG_CMSG_CLOEXEC
            )
            if not message:
                return
            for _, _, data in rights:  # none where descriptors have run out: the pipe just ends
                report_fd = int.from_bytes(data, sys.byteorder)
                _begin(connection, message, report_fd, site)
                os.close(report_fd)
    finally:
        os._exit(0)


def _begin(connection: socket.socket, message: bytes, report_fd: int, site: Site) -> None:
    try:
        if os.fork():
            return
    except OSError:
        _write(report_fd, encode_report(Refused(NO_SPAWN, "resources")))
        return
    try:
        connection.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            order = decode_order(message)
        except UsageError as error:
            _write(report_fd, encode_report(Refused(NO_SPAWN, error.code)))
        else:
            supervise(order, site, lambda report: _tell(report_fd, report))
    finally:
        os._exit(0)


def _tell(report_fd: int, report: bytes) -> None:
    """Write the report and close the pipe."""
    _write(report_fd, report)
    os.close(report_fd)


def _write(report_fd: int, report: bytes) -> None:
    with suppress(OSError):  # an owner that is gone does not matter
        os.write(report_fd, report)


def _alone(theirs: socket.socket) -> socket.socket:
    """Keep nothing of the owner: no descriptor but this one, no handler, no terminal."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - _KEPT_IGNORED:
        with suppress(OSError, ValueError):  # KILL, STOP and what the library keeps for itself
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    kept = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)
    for name in os.listdir("/proc/self/fd"):
        if int(name) != kept:
            with suppress(OSError):  # the one that listed them
                os.close(int(name))
    null = os.open(os.devnull, os.O_RDWR)  # the lowest: standard input
    for standard in (1, 2):
        os.dup2(null, standard)
    return socket.socket(fileno=kept)
