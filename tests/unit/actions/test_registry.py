"""A type is reachable when this build carries it and the manifest enables it."""

import pytest

from qinglong_edge.actions.manifest import EMPTY, Manifest
from qinglong_edge.actions.registry import Reach, Registry
from qinglong_edge.domain import limits
from qinglong_edge.domain.action import ACTION_TYPES, Capability, Plan
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.errors import (
    DamagedError,
    InvariantBroken,
    QinglongError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Dispatch, Outcome
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.ports.evidence import EvidenceContext, Providers
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


class Provider:
    """Find nothing, for one type."""

    def __init__(self, action_type: str, capability: Capability = Capability.AUTOMATIC) -> None:
        self.action_type = action_type
        self.capability = capability

    def inspect(self, context: EvidenceContext) -> Evidence:
        return Evidence(Finding.MISSING, "nothing_there")


SHELL: ActionHandler = Handler("shell.exec")
CREATE: ActionHandler = Handler("run.create")
MANIFEST = Manifest(("http.request", "shell.exec"), {"shell.exec": 7})
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


RUNS = Provider("run.create")


def test_a_registry_is_what_the_reconciler_asks_for() -> None:
    known: Providers = Registry(MANIFEST, [SHELL, CREATE], [RUNS])
    assert known.provider("run.create") is RUNS
    assert known.provider("shell.exec") is None
    assert known.provider("nothing") is None


@pytest.mark.scenario(163)
@pytest.mark.parametrize("second", ["run.create", "nothing"])
def test_two_providers_of_one_type_or_one_of_none_are_refused(second: str) -> None:
    with pytest.raises(InvariantBroken):
        Registry(MANIFEST, [], [RUNS, Provider(second)])


MANUAL_ONLY = [name for name, kind in ACTION_TYPES.items() if kind.capability == "manual_only"]


@pytest.mark.adr("0033", "4.1")
@pytest.mark.adr("0033", "4.2")
@pytest.mark.parametrize("action_type", MANUAL_ONLY)
def test_no_provider_is_automatic_for_a_type_that_is_manual_only(action_type: str) -> None:
    with pytest.raises(InvariantBroken):
        Registry(MANIFEST, [], [Provider(action_type)])
    modest = Provider(action_type, Capability.MANUAL_ONLY)
    assert Registry(MANIFEST, [], [modest]).provider(action_type) is modest


def test_an_automatic_type_may_have_a_modest_provider() -> None:
    modest = Provider("run.create", Capability.MANUAL_ONLY)
    assert Registry(MANIFEST, [], [modest]).provider("run.create") is modest


@pytest.mark.parametrize(
    ("manifest", "ms"),
    [
        (Manifest((), {"run.create": 9}), 9),
        (EMPTY, limits.HANDLER_DEADLINE_MS_DEFAULT),
        (DamagedError("manifest_damaged", "x"), limits.HANDLER_DEADLINE_MS_DEFAULT),
        (UnavailableError("storage_error", "x"), limits.HANDLER_DEADLINE_MS_DEFAULT),
    ],
)
def test_evidence_is_looked_for_whatever_became_of_the_manifest(
    manifest: Manifest | QinglongError, ms: int
) -> None:
    """What was started while a type was enabled must not stay unknown because it no longer is."""
    registry = Registry(manifest, [CREATE], [RUNS])
    assert registry.provider("run.create") is RUNS
    assert registry.inspect_deadline_ms("run.create") == ms
    again = registry.with_manifest(MANIFEST)
    assert (again.provider("run.create"), again.find("run.create")) == (RUNS, None)


def test_a_manifest_that_cannot_be_believed_is_told_to_whoever_asks_for_a_handler() -> None:
    damage = DamagedError("manifest_damaged", "x")
    registry = Registry(damage, [SHELL])
    assert registry.damage is damage
    assert registry.with_manifest(MANIFEST).damage is None
    assert registry.reach("http.request") is Reach.NOT_AVAILABLE
    for ask in (
        lambda: registry.find("shell.exec"),
        lambda: registry.require("shell.exec"),
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
