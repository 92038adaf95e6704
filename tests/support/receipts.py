"""A completion receipt, what the database expects of it, and directories that hold some."""

import os
from pathlib import Path
from typing import Any

from qinglong_edge.domain.completion import (
    CompletionReceipt,
    Expected,
    completion_bytes,
    seal,
    token_digest,
)
from qinglong_edge.executor.ambient import system_entropy
from qinglong_edge.receipts.store import CompletionReceipts
from tests.support.clock import WALL_MS

SECRET = b"a secret key of thirty-two bytes"
TOKEN = "t0ken-_" * 6 + "x"
RUN = "01890000-0000-7000-8000-000000000001"
ATTEMPT = "01890000-0000-7000-8000-000000000002"
OTHER = "01890000-0000-7000-8000-000000000003"
STARTED_MS, FINISHED_MS = WALL_MS + 1_000, WALL_MS + 2_000
RECEIPT = seal(
    CompletionReceipt(
        2, RUN, ATTEMPT, 1, TOKEN, "boot-1", STARTED_MS, FINISHED_MS, 0, None, 1, ""
    ),
    SECRET,
)  # fmt: skip
BODY = completion_bytes(RECEIPT)
EXPECTED = Expected(RUN, ATTEMPT, 0, False, "boot-1", token_digest(TOKEN), WALL_MS)


def sealed(**changes: Any) -> CompletionReceipt:
    """Return the receipt with other members, under a true HMAC."""
    return seal(RECEIPT._replace(**changes), SECRET)


def receipts(state: Path) -> CompletionReceipts:
    return CompletionReceipts(str(state), system_entropy)


def shard(state: Path) -> Path:
    """Return the directory of the receipt, as a publication would make it."""
    found = state / "receipts" / ATTEMPT[:2]
    for directory in (found.parent, found):
        directory.mkdir(mode=0o700, exist_ok=True)
    return found


def put(state: Path, data: bytes = BODY, attempt_id: str = ATTEMPT) -> Path:
    """Plant a private file under the name of an attempt's receipt."""
    path = shard(state) / f"{attempt_id}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, data)
    os.close(descriptor)
    return path


def tree(root: Path) -> dict[str, bytes]:
    """Return every file below a directory, and what is in it."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
