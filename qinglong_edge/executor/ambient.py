"""The one home of clocks and entropy: everything else receives them through `ports.ambient`.

Wall time is for people, boot time (which counts suspend) for ticks, monotonic time for deadlines
inside this process (ADR-0002).
"""

import os
import time

from qinglong_edge.domain import ids
from qinglong_edge.domain.errors import UnavailableError, UsageError
from qinglong_edge.domain.tick import Reading

BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
_NS_PER_MS = 1_000_000
_BOOT_ID_BYTES_MAX = 128


class SystemClocks:
    """Read the clocks of this machine.

    The boot id is read at the first look and kept: it cannot change while this process lives. A
    daemon that must run where none can be read hands one in that it drew for this start.
    """

    def __init__(self, boot_id: str | None = None, *, boot_id_path: str = BOOT_ID_PATH) -> None:
        """Keep a boot id that is already known, or the path of the file that holds it."""
        self._boot_id = boot_id
        self._boot_id_path = boot_id_path

    def read(self) -> Reading:
        """Return wall and boot time in milliseconds, and the boot id.

        Raises `UnavailableError` (`boot_id_unreadable`); nothing is kept then, so that the next
        call tries again.
        """
        if self._boot_id is None:
            self._boot_id = _read_boot_id(self._boot_id_path)
        boot_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NS_PER_MS
        return Reading(time.time_ns() // _NS_PER_MS, boot_ms, self._boot_id)

    def monotonic_ms(self) -> int:
        """Return milliseconds that only grow; their zero means nothing."""
        return time.monotonic_ns() // _NS_PER_MS


def system_entropy(size: int, /) -> bytes:
    """Return `size` bytes of the kernel's generator; early in a boot it waits for its seed."""
    return os.urandom(size)


def _read_boot_id(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, _BOOT_ID_BYTES_MAX).decode("ascii").strip()
        finally:
            os.close(fd)
        return ids.check_ident(text, "boot_id")
    except (OSError, ValueError, UsageError) as error:
        raise UnavailableError("boot_id_unreadable", "no boot id can be read") from error
