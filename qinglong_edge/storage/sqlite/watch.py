"""Notice a database that loses its name while it is open."""

import os
from contextlib import suppress

from qinglong_edge.domain.errors import UnavailableError


class Watch:
    """Notice that the open database, or its log, has lost its name.

    With an exclusive log SQLite does not look again: commits into a removed file succeed.
    """

    def __init__(self, path: str) -> None:
        """Remember the file that carries the name now."""
        self._path = path
        self._seen = {path: os.stat(path)}

    def __call__(self) -> None:
        """Compare with what was seen before; raises `UnavailableError` (`store_vanished`)."""
        for path, before in self._seen.items():
            try:
                same = os.path.samestat(before, os.stat(path))
            except OSError:
                same = False
            if not same:
                name = os.path.basename(path)
                raise UnavailableError("store_vanished", f"{name} was moved, removed or replaced")
        with suppress(FileNotFoundError):  # made by the first commit, and kept from then on
            self._seen[self._path + "-wal"] = os.stat(self._path + "-wal")
