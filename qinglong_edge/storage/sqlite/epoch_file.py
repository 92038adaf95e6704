"""Keep the newest epoch outside the database, to notice a database that was put back (ADR-0002).

`STATE/epoch` is decimal text, rewritten in place without a sync after the commit that added a boots
row. After a power cut it may lag behind, which only weakens the check; it never runs ahead.
"""

import os
from contextlib import suppress

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import DamagedError

EPOCH = "epoch"

_BYTES_MAX = 32
_PRIVATE = 0o600
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def write(state_dir: str, epoch: int) -> None:
    """Store `epoch`; a failure leaves the older number, which can only weaken the check."""
    text = f"{epoch}\n".encode()
    with suppress(OSError):
        file = os.open(_path(state_dir), os.O_WRONLY | os.O_CREAT | _OPEN, _PRIVATE)
        try:
            os.pwrite(file, text, 0)
            if os.fstat(file).st_size > len(text):
                os.ftruncate(file, len(text))
        finally:
            os.close(file)


def read(state_dir: str) -> int | None:
    """Return the stored epoch; None where it is missing, empty, malformed or cannot be read."""
    try:
        file = os.open(_path(state_dir), os.O_RDONLY | _OPEN)
    except OSError:
        return None
    try:
        data = os.read(file, _BYTES_MAX + 1)
    except OSError:
        return None
    finally:
        os.close(file)
    digits = data.removesuffix(b"\n")
    if len(data) > _BYTES_MAX or not digits.isdigit() or digits.startswith(b"0"):
        return None
    epoch = int(digits)
    return epoch if epoch <= limits.EPOCH_MAX else None


def check(state_dir: str, newest_epoch: int) -> None:
    """Compare with the database's newest epoch; raises `DamagedError` `store_rolled_back`."""
    stored = read(state_dir)
    if stored is not None and stored > newest_epoch:
        raise DamagedError(
            "store_rolled_back",
            "the database is older than what this machine has already seen",
            {"epoch": newest_epoch, "epoch_seen": stored},
        )


def _path(state_dir: str) -> str:
    return os.path.join(state_dir, EPOCH)
