"""A type is reachable when this build carries it and the manifest enables it."""

import pytest

from qinglong_edge.actions.manifest import Deadlines, Manifest
from qinglong_edge.actions.registry import Reach, Registry
from qinglong_edge.domain import limits
from qinglong_edge.domain.action import ACTION_TYPES, Plan
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.errors import DamagedError, InvariantBroken, RefusedError, UsageError
from qinglong_edge.domain.execution import Dispatch, Outcome
from qinglong_edge.ports.handlers import (
    ActionHandler,
    HandlerAnswer,
    HandlerContext,
    Handlers,
    Inspection,
    Readiness,
)
from tests.support.handlers import Plain


class Handler(Plain):
    """Do nothing, for one type."""

    def __init__(self, action_type: str) -> None:
        self.action_type = action_type

    def check(self, plan: Plan) -> None:
        """Take everything."""

    def preview(self, plan: Plan) -> JsonObject:
        return {}

    def deadline_ms(self, plan: Plan) -> int:
        return 1

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:
        return Inspection(Readiness.READY)

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        return HandlerAnswer(Outcome.SUCCEEDED, "done")


SHELL: ActionHandler = Handler("shell.exec")
CREATE: ActionHandler = Handler("run.create")
MANIFEST = Manifest(("http.request", "shell.exec"), {"shell.exec": Deadlines(7, None)})
REGISTRY = Registry(MANIFEST, [SHELL, CREATE])


def test_a_registry_is_what_the_dispatcher_asks_for() -> None:
    found: Handlers = REGISTRY
    assert found.find("shell.exec") is SHELL


@pytest.mark.parametrize(
    ("action_type", "reach"),
    [
        ("shell.exec", Reach.ENABLED),
        ("run.create", Reach.DISABLED),
        ("http.request", Reach.NOT_AVAILABLE),  # enabled, but not carried
        ("task.publish", Reach.NOT_AVAILABLE),
        ("nothing", Reach.NOT_AVAILABLE),
    ],
)
def test_only_what_is_carried_and_enabled_is_found(action_type: str, reach: Reach) -> None:
    assert REGISTRY.reach(action_type) is reach
    assert (REGISTRY.find(action_type) is not None) is (reach is Reach.ENABLED)


def test_an_enabled_type_may_be_proposed() -> None:
    assert REGISTRY.require("shell.exec") is SHELL


@pytest.mark.parametrize(
    ("action_type", "family", "code"),
    [
        ("nothing", UsageError, "unknown_action_type"),
        ("", UsageError, "unknown_action_type"),
        ("http.request", RefusedError, "handler_not_available"),
        ("package.install", RefusedError, "handler_not_available"),
        ("run.create", RefusedError, "handler_not_enabled"),
    ],
)
def test_no_other_type_may_be_proposed(
    action_type: str, family: type[UsageError | RefusedError], code: str
) -> None:
    with pytest.raises(family) as caught:
        REGISTRY.require(action_type)
    assert caught.value.code == code


@pytest.mark.scenario(119)
@pytest.mark.parametrize("second", ["shell.exec", "nothing"])
def test_two_handlers_of_one_type_or_one_of_none_are_refused(second: str) -> None:
    with pytest.raises(InvariantBroken):
        Registry(MANIFEST, [SHELL, Handler(second)])


def test_inspect_has_the_deadline_of_the_manifest() -> None:
    assert REGISTRY.inspect_deadline_ms("shell.exec") == 7
    assert REGISTRY.inspect_deadline_ms("run.create") == limits.HANDLER_DEADLINE_MS_DEFAULT


def test_a_manifest_that_cannot_be_believed_is_told_to_whoever_asks_for_a_handler() -> None:
    damage = DamagedError("manifest_damaged", "x")
    registry = Registry(damage, [SHELL])
    assert registry.damage is damage
    assert registry.with_manifest(MANIFEST).damage is None
    assert registry.reach("http.request") is Reach.NOT_AVAILABLE
    for ask in (
        lambda: registry.find("shell.exec"),
        lambda: registry.require("shell.exec"),
        lambda: registry.inspect_deadline_ms("shell.exec"),
        lambda: registry.describe()[0],
    ):
        with pytest.raises(DamagedError) as caught:
            ask()
        assert caught.value is damage


def test_every_action_type_is_described() -> None:
    rows = REGISTRY.describe()
    assert [row["action_type"] for row in rows] == sorted(ACTION_TYPES)
    assert rows[-2] == {
        "action_type": "shell.exec",
        "permission": "tool.call:shell.exec",
        "capability": "manual_only",
        "least_risk": "medium",
        "state": "enabled",
    }
    assert {row["action_type"]: row["state"] for row in rows} == {
        "http.request": "not_available",
        "package.install": "not_available",
        "run.cancel": "not_available",
        "run.create": "disabled",
        "shell.exec": "enabled",
        "task.publish": "not_available",
    }
