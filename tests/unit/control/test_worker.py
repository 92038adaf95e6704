"""The worker: one job after the other, each of them collected once."""

import socket
import threading

from qinglong_edge.commands.engine import Caller
from qinglong_edge.control.connection import Connection
from qinglong_edge.control.protocol import Request
from qinglong_edge.control.worker import Done, Job, Worker


def test_jobs_are_done_in_order_and_collected_once() -> None:
    names: list[str] = []
    woken = threading.Semaphore(0)

    def carry(job: Job) -> Done:
        names.append(threading.current_thread().name)
        return Done(job, 0, job.request.command.encode())

    worker = Worker(carry, woken.release)
    assert worker.join(0)
    assert worker.collect() is None
    ours, theirs = socket.socketpair()
    connection = Connection(ours, 0, 0)
    for word in ("a", "b", "c"):
        worker.give(Job(connection, Request(word, {}), Caller(None, None, is_state_owner=False)))
    for _ in range(3):
        assert woken.acquire(timeout=10)
    found = [worker.collect() for _ in range(4)]
    assert [done and done.text for done in found] == [b"a", b"b", b"c", None]
    assert set(names) == {"control"}
    assert not worker.join(0)
    worker.stop()
    assert worker.join(10_000)
    connection.close()
    theirs.close()
