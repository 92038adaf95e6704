"""What the supervisor of a run asks of receipts: room before it starts, a name at the end."""

import enum
from typing import Protocol


class Published(enum.Enum):
    """Say what has the name now; nothing that had it was replaced."""

    NEW = "new"
    SAME = "same"  # these very bytes were published before
    OTHER = "other"


class Reserve(Protocol):
    """Hold room on the disk for one file that nobody sees yet."""

    def publish(self, data: bytes, /) -> Published:
        """Give the bytes their name, durably; to be called once.

        Raises `UnavailableError`, and then the name has all of the bytes or none; the latter also
        with `RefusedError` where the file system has no hard links. A disk that lies about its
        flushes defeats all of this.
        """
        ...

    def close(self) -> None:
        """Give the room back; twice does no harm."""
        ...


class Reserves(Protocol):
    """Take room for receipts."""

    def reserve(self, attempt_id: str) -> Reserve:
        """Take the room of an attempt's receipt; where there is none, nothing may be started.

        Raises `UnavailableError`, `RefusedError` where the file system cannot keep a receipt, and
        `DamagedError` where its directory is not private.
        """
        ...
