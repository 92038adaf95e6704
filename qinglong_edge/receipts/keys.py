"""Keep the keys of receipts: `keys/hmac-<version>` below the state, made once, never replaced.

Old keys stay: a receipt names the version that it was sealed with, and may be found much later.
"""

import os
import re
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.ports.ambient import Entropy
from qinglong_edge.receipts import private
from qinglong_edge.receipts.private import entered
from qinglong_edge.receipts.publish import FileReserve

KEYS = "keys"
SECRET_BYTES = 32
_NAME = re.compile(r"hmac-([1-9][0-9]{0,8})")


class Key(NamedTuple):
    """Hold one key."""

    version: int
    secret: bytes


class ReceiptKeys:
    """Make and find keys; raises `UnavailableError`, and `DamagedError` for what is not private."""

    def __init__(self, state: str, entropy: Entropy) -> None:
        """Keep the path of the state directory."""
        self._state = state
        self._entropy = entropy

    def create(self) -> Key:
        """Return the newest key, made where there is none; of two makers one wins."""
        if not self._versions():
            self._make(1)
        return self.newest()

    def rotate(self) -> Key:
        """Make the next key and return it; all earlier ones stay."""
        self._make(self.newest().version + 1)
        return self.newest()

    def newest(self) -> Key:
        """Return the key to seal with; raises `DamagedError` where all are gone."""
        versions = self._versions()
        secret = self.find(versions[-1]) if versions else None
        if secret is None:
            raise DamagedError("receipt_keys_missing", "the keys of receipts are gone")
        return Key(versions[-1], secret)

    def find(self, version: int) -> bytes | None:
        """Return the secret of a version, None where there never was such a key."""
        ids.check_int(version, "key_version", least=1, most=limits.VERSION_MAX)
        try:
            with entered(self._state, KEYS) as at:
                data, fault = private.look(at, f"hmac-{version}")
        except FileNotFoundError:
            return None
        if data is None or fault is not None or len(data) != SECRET_BYTES:
            raise DamagedError(
                "receipt_key_damaged", "a key of receipts is damaged", {"key_version": version}
            )
        return data

    def _make(self, version: int) -> None:
        with entered(self._state, KEYS, make=True) as at:
            reserve = FileReserve(at, f"hmac-{version}", entropy=self._entropy)
            reserve.publish(self._entropy(SECRET_BYTES))

    def _versions(self) -> list[int]:
        try:
            with entered(self._state, KEYS) as at:
                found = map(_NAME.fullmatch, os.listdir(at))
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for match in found if match is not None)
