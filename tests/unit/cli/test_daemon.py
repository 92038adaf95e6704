"""What a daemon does with a bug of one command: its caller is told, and its log."""

from typing import Any

import pytest

from qinglong_edge.cli.daemon import Daemon
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.table import TABLE, Access, Entry
from qinglong_edge.domain import lifecycle
from qinglong_edge.domain.canonical import JsonObject
from tests.support.clock import FakeClocks
from tests.support.store import STATE_OWNER, make_engine, open_store

Logged = list[tuple[str, dict[str, Any]]]


def daemon(logged: Logged) -> Daemon:
    clocks = FakeClocks()
    engine = make_engine(open_store(":memory:", clocks), clocks)
    options = lifecycle.options_of(engine.facts.policy)
    no_owner: Any = None  # nothing listens here, so nothing is asked of it
    return Daemon(no_owner, engine, lambda event, **words: logged.append((event, words)), options)


def test_a_bug_of_one_command_leaves_its_name_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_engine: Engine, _caller: Caller, _args: JsonObject) -> Answer:
        raise ZeroDivisionError

    logged: Logged = []
    made = daemon(logged)
    monkeypatch.setitem(TABLE, "status", Entry(broken, Access.LOOK))
    with pytest.raises(ZeroDivisionError):
        made._carry("status", {}, STATE_OWNER, 0)
    made._host.call_soon(made._host.stop)
    made._host.run()
    assert ("command_failed", {"command": "status", "code": "ZeroDivisionError"}) in logged
