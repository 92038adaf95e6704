"""Keep the completion receipts of local runs: `receipts/<id[0:2]>/<id>.json` below the state.

Every operation may be repeated after a crash. What is not believed is not lost: it moves to
`.quarantine`, under a name that says its content, so that newer evidence never meets older.
"""

import os
import stat
from contextlib import suppress
from typing import NamedTuple

from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.completion import CompletionReceipt, check_id, parse_completion
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.ports.ambient import Entropy
from qinglong_edge.ports.probe import Probe, no_probe
from qinglong_edge.receipts import private
from qinglong_edge.receipts.private import entered
from qinglong_edge.receipts.publish import FileReserve

RECEIPTS = "receipts"
QUARANTINE = ".quarantine"
_EVIDENCE = ".{digest}.json"


class Invalid(NamedTuple):
    """Say why what stands under a receipt's name is none."""

    code: str


class CompletionReceipts:
    """Answer `ports.receipts.Reserves`, and everything that is done with a receipt afterwards.

    All methods raise `UsageError` for what is no attempt id before any file is touched,
    `DamagedError` where a directory is not private, and `UnavailableError` for whatever else the
    system answers: that is never a word about the receipt, so it is kept and looked at again.
    """

    def __init__(self, state: str, entropy: Entropy, probe: Probe = no_probe) -> None:
        """Keep the path of the state directory; the rest is made when it is needed."""
        self._state = state
        self._entropy = entropy
        self._probe = probe

    def reserve(self, attempt_id: str) -> FileReserve:
        """Take the room of a receipt."""
        shard, name = place_of(attempt_id)
        with entered(self._state, RECEIPTS, shard, make=True) as at:
            return FileReserve(at, name, entropy=self._entropy, probe=self._probe)

    def read(self, attempt_id: str) -> CompletionReceipt | Invalid | None:
        """Return the receipt, what is wrong with it, or None where there is none yet."""
        shard, name = place_of(attempt_id)
        try:
            with entered(self._state, RECEIPTS, shard) as at:
                data, fault = private.look(at, name)
        except FileNotFoundError:
            return None
        if fault is not None:
            return Invalid(fault)
        try:
            receipt = parse_completion(data or b"")
        except UsageError:
            return Invalid("malformed")
        return receipt if receipt.attempt_id == attempt_id else Invalid("other_attempt")

    def remove(self, attempt_id: str) -> bool:
        """Drop the receipt of a terminal attempt, with what its publication left; False for none.

        It is not read: whoever wants the evidence moves it to the quarantine instead.
        """
        shard, name = place_of(attempt_id)
        try:
            with entered(self._state, RECEIPTS, shard) as at:
                for temporary in list(private.temporaries(at, name)):
                    with suppress(OSError):
                        os.unlink(temporary, dir_fd=at)
                _unlink(name, at)
                os.fsync(at)
        except FileNotFoundError:
            return False
        return True

    def reference(self, attempt_id: str) -> str | None:
        """Return where `quarantine` would put it, or has put it; None where there is nothing.

        It is stored before anything moves, so that a move can be finished after a crash.
        """
        shard, name = place_of(attempt_id)
        try:
            with entered(self._state, RECEIPTS, shard) as at:
                return _reference(shard, _evidence_name(at, attempt_id, name))
        except FileNotFoundError:
            kept = self._kept(attempt_id)
        return _reference(shard, kept[0]) if kept else None

    def quarantine(self, attempt_id: str) -> str | None:
        """Move what stands under a receipt's name out of the way; answers like `reference`."""
        shard, name = place_of(attempt_id)
        try:
            with entered(self._state, RECEIPTS, shard) as at:
                seen = private.identity(at, name)
                target = _evidence_name(at, attempt_id, name)
                with entered(self._state, RECEIPTS, QUARANTINE, shard, make=True) as kept:
                    if not private.move((at, name), (kept, target), seen):
                        _drop_repeated((at, name), (kept, target))
                return _reference(shard, target)
        except FileNotFoundError:
            return self.reference(attempt_id)

    def purge(self, attempt_id: str) -> bool:
        """Drop all that the quarantine holds of an attempt; False where that is nothing."""
        shard, _ = place_of(attempt_id)
        kept = self._kept(attempt_id)
        if kept:
            with entered(self._state, RECEIPTS, QUARANTINE, shard) as at:
                for name in kept:
                    with suppress(FileNotFoundError):
                        _unlink(name, at)
                os.fsync(at)
        return bool(kept)

    def _kept(self, attempt_id: str) -> list[str]:
        shard, _ = place_of(attempt_id)
        size = len(attempt_id) + len(_EVIDENCE.format(digest="0" * 64))
        try:
            with entered(self._state, RECEIPTS, QUARANTINE, shard) as at, os.scandir(at) as found:
                names = [entry.name for entry in found if len(entry.name) == size]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.startswith(f"{attempt_id}."))


def place_of(attempt_id: str) -> tuple[str, str]:
    """Return directory and name of a receipt; raises `UsageError` for what is no attempt id."""
    check_id(attempt_id, "attempt_id")
    return attempt_id[:2], f"{attempt_id}.json"


def _reference(shard: str, name: str) -> str:
    return f"{QUARANTINE}/{shard}/{name}"


def _evidence_name(at: int, attempt_id: str, name: str) -> str:
    """Name evidence by its bytes, or, where they cannot be read safely, by its identity."""
    data = private.look(at, name).data
    seen = repr(tuple(private.identity(at, name))).encode() if data is None else data
    return attempt_id + _EVIDENCE.format(digest=sha256_hex(seen))


def _drop_repeated(source: tuple[int, str], target: tuple[int, str]) -> None:
    """Drop a file whose very bytes are kept already; anything else is looked at again later."""
    data = private.look(*source).data
    if data is not None and data == private.look(*target).data:
        os.unlink(source[1], dir_fd=source[0])
        os.fsync(source[0])


def _unlink(name: str, at: int) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        os.rmdir(name, dir_fd=at)
    else:
        os.unlink(name, dir_fd=at)
