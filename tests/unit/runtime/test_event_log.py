"""Events are one bounded line each, and a stream that is gone harms nobody."""

import io
import json

from qinglong_edge.runtime.event_log import LINE_CHARS_MAX, EventLog
from tests.support.clock import WALL_MS, FakeClocks


def test_an_event_is_one_json_line() -> None:
    stream = io.StringIO()
    EventLog(stream, FakeClocks(), as_json=True)("cycle", succeeded=2, health="ok")
    assert stream.getvalue().count("\n") == 1
    event = json.loads(stream.getvalue())
    assert event == {"event": "cycle", "at_ms": WALL_MS, "succeeded": 2, "health": "ok"}


def test_an_event_for_people_is_short() -> None:
    stream = io.StringIO()
    EventLog(stream, FakeClocks(), as_json=False)("stopped", outcome="drained")
    assert stream.getvalue() == "stopped outcome=drained\n"


def test_a_long_event_is_cut_to_its_name() -> None:
    stream = io.StringIO()
    EventLog(stream, FakeClocks(), as_json=True)("odd", text="x" * LINE_CHARS_MAX)
    assert json.loads(stream.getvalue())["cut"] is True
    assert len(stream.getvalue()) < LINE_CHARS_MAX


def test_a_stream_that_is_gone_is_passed_over() -> None:
    stream = io.StringIO()
    stream.close()
    EventLog(stream, FakeClocks(), as_json=True)("cycle")
