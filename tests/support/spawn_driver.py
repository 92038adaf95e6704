"""Be the owner of a spawner: `python -P -B -m tests.support.spawn_driver DIRECTORY`.

It holds a lock and an inheritable descriptor before it forks, and has threads after, as a daemon
has. Each line of stdin is an order; each line of stdout is an attempt and its report. Endings are
published as files of the directory; the name of an attempt says what goes wrong with it.
"""

import errno
import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.executor.process import Command, prepare
from qinglong_edge.executor.run_order import (
    Order,
    RunEnding,
    encode_report,
)
from qinglong_edge.executor.spawner import Spawner
from qinglong_edge.executor.supervisor_process import Patience, Site

FULL, FLAKY, DEAF = "full", "flaky", "deaf"
PATIENCE = Patience(linger_ms=300, publish_waits_ms=(1, 1, 1))
LOCK = "lock"


class Receipts:
    """Publish endings into a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        prepare()
        self._known = set(sys.modules)

    @contextmanager
    def receipt(self, order: Order) -> Iterator[Callable[[RunEnding], None]]:
        if order.attempt_id.startswith(FULL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room = self._directory / f"{order.attempt_id}.room"
        room.write_text(order.token)
        tries = self._directory / f"{order.attempt_id}.tries"

        def publish(ending: RunEnding) -> None:
            with tries.open("a") as file:
                file.write("x")
            count = tries.stat().st_size
            if order.attempt_id.startswith(DEAF) or (
                order.attempt_id.startswith(FLAKY) and count < 3
            ):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            late = sorted(set(sys.modules) - self._known)
            (self._directory / f"{order.attempt_id}.loaded").write_text(" ".join(late))
            room.write_text(json.dumps(ending))
            room.rename(self._directory / f"{order.attempt_id}.ending")

        try:
            yield publish
        finally:
            room.unlink(missing_ok=True)


def main() -> None:
    directory = Path(sys.argv[1])
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(lock, True)
    fcntl.flock(lock, fcntl.LOCK_EX)
    clocks = SystemClocks()
    site = Site(str(directory / "logs"), clocks, Receipts(directory).receipt, PATIENCE)
    spawner = Spawner(site)
    say = threading.Lock()

    def carry(order: Order) -> None:
        report = spawner.spawn(order)
        with say:
            sys.stdout.write(f"{order.attempt_id} {encode_report(report).decode()}\n")
            sys.stdout.flush()

    sys.stdout.write(f"{spawner.pid}\n")
    sys.stdout.flush()
    threads = []
    for line in sys.stdin:
        value = json.loads(line)
        order = Order(**value | {"command": Command(**value["command"])})
        threads.append(threading.Thread(target=carry, args=(order,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    spawner.close()


if __name__ == "__main__":
    main()
