"""Say what happens, one bounded line an event, on a stream that may go away at any time.

Fields are numbers and words of our own: no argument of an action, no output, no foreign text. An
event that cannot be written is lost; what it tells about stands in the database.
"""

import json
import threading
from typing import TextIO

from qinglong_edge.domain.errors import Detail
from qinglong_edge.ports.ambient import Clocks

LINE_CHARS_MAX = 4_096


class EventLog:
    """Write events as JSON lines or as text; safe from several threads."""

    def __init__(self, stream: TextIO, clocks: Clocks, *, as_json: bool) -> None:
        """Take the stream and the form."""
        self._stream = stream
        self._clocks = clocks
        self._as_json = as_json
        self._lock = threading.Lock()

    def __call__(self, event: str, **fields: Detail) -> None:
        """Write one event; a line over the bound is cut to its name."""
        line = self._line(event, fields)
        if len(line) > LINE_CHARS_MAX:
            line = self._line(event, {"cut": True})
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return

    def _line(self, event: str, fields: dict[str, Detail]) -> str:
        at_ms = self._clocks.read().wall_ms
        if self._as_json:
            return json.dumps({"event": event, "at_ms": at_ms, **fields}, separators=(",", ":"))
        words = " ".join(f"{name}={value}" for name, value in fields.items())
        return f"{event} {words}".rstrip()
