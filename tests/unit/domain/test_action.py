import hashlib
import json
from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import (
    ACTION_TYPES,
    RISK_RANK,
    Capability,
    Plan,
    PlanFile,
    Risk,
    action_digest,
    bind,
    check_path,
    is_automatic,
    least_risk,
    parse_plan,
    plan_body,
    plan_from_body,
    preview_digest,
    run_plan_digest,
)
from qinglong_edge.domain.canonical import JsonObject, canonical_bytes
from qinglong_edge.domain.errors import QinglongError, UsageError
from qinglong_edge.domain.ids import check_permission
from tests.support.builders import PROJECT, shell_plan

P1: JsonObject = {
    "schemaVersion": 1,
    "actionType": "run.create",
    "actionRef": "plan-042",
    "projectId": "home-lab",
    "taskId": "backup.nas",
    "taskRevision": "r7",
    "executorType": "local_process",
    "priority": -5,
    "taskName": None,
    "taskSnapshotRef": None,
    "inputRef": None,
}
P2: JsonObject = {
    **P1,
    "priority": 0,
    "taskName": '夜间备份 "A"',
    "taskSnapshotRef": "snap:backup/7",
    "inputRef": "input\\x",
}


@pytest.mark.scenario(184, 186)
@pytest.mark.adr("0003", "1")
@pytest.mark.parametrize(
    ("plan", "size", "expected"),
    [
        (P1, 233, "cad219f1877b9a449f09d31f9bda1262ea4f40c1ca28a980556d08d99cf52303"),
        (P2, 265, "118e3f89868d03e517a4013fcbda7a356af498ad3c61e02fcd740fd44aa671b6"),
    ],
)
def test_a_run_plan_has_the_contract_digest_whatever_the_order(
    plan: JsonObject, size: int, expected: str
) -> None:
    assert len(canonical_bytes(plan)) == size
    assert run_plan_digest(plan) == expected
    assert run_plan_digest(dict(reversed(list(plan.items())))) == expected
    absent = {name: value for name, value in plan.items() if value is not None}
    assert run_plan_digest(absent) == expected


PLAN_BYTES = b"""{
  "files": [{"sha256": "%b", "path": "/srv/z"}, {"path": "/srv/a", "sha256": "%b"}],
  "params": {"timeout_ms": 5000, "env": {"Z": "1", "\\ud834\\udd1e": "", "\\uffff": "3"},
             "argv": ["/bin/echo", "\\u5907\\u4efd \\"A\\"", "a/b\\\\c"]},
  "action_type": "shell.exec", "schema_version": 1}""" % (b"b" * 64, b"a" * 64)


def independent_action_digest() -> str:
    """Compute our own fixed vector with nothing of ours: hashlib and json."""
    body = {
        "schemaVersion": 1,
        "actionType": "shell.exec",
        "projectId": "prj-home",
        "params": {
            "argv": ["/bin/echo", '备份 "A"', "a/b\\c"],
            "env": {"Z": "1", "\uffff": "3", "𝄞": ""},
            "timeout_ms": 5_000,
        },
        "files": [
            {"path": "/srv/a", "sha256": "a" * 64},
            {"path": "/srv/z", "sha256": "b" * 64},
        ],
    }
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(b"qinglong-edge.action.v1\x00" + text.encode()).hexdigest()


@pytest.mark.adr("0003", "1")
def test_our_action_digest_has_a_fixed_vector() -> None:
    plan = parse_plan(PLAN_BYTES, "prj-home")
    expected = "400d683338ecc905ee581c2ede16584d5432ac84bbbc26ba015a9cee3dbf095c"
    assert action_digest(plan) == independent_action_digest() == expected


@pytest.mark.adr("0003", "1")
def test_our_preview_digest_has_a_fixed_vector() -> None:
    text = '{"argv":["/bin/echo"],"files":[],"summary":"备份","warnings":[{"a":1,"b":2}]}'
    independent = hashlib.sha256(b"qinglong-edge.preview.v1\x00" + text.encode()).hexdigest()
    expected = "5890ea2e230ee2bd6a1487f7d3eb49652347ac6046138c77daea4585549bfdff"
    shuffled: JsonObject = {
        "warnings": [{"b": 2, "a": 1}], "summary": "备份", "files": [], "argv": ["/bin/echo"],
    }  # fmt: skip
    assert preview_digest(shuffled) == independent == expected


def test_a_plan_without_files_has_an_empty_list_in_its_bytes() -> None:
    assert plan_body(shell_plan()) == (
        b'{"schemaVersion":1,"actionType":"shell.exec","projectId":"prj-home",'
        b'"params":{"argv":["/bin/true"]},"files":[]}'
    )


@pytest.mark.parametrize(
    "change",
    [
        {"action_type": "http.request"},
        {"project_id": "another"},
        {"params": {"argv": ["/bin/false"]}},
        {"params": {"argv": ["/bin/true"], "cwd": "/"}},
        {"files": (PlanFile("/a", "0" * 64),)},
    ],
)
def test_every_part_of_a_plan_changes_its_digest(change: dict[str, Any]) -> None:
    assert action_digest(shell_plan(**change)) != action_digest(shell_plan())


def test_the_binding_carries_the_digest_as_its_reference() -> None:
    plan = shell_plan()
    bound = bind(plan, "tool.call:shell.exec", {"summary": "x"})
    assert bound.action_ref == bound.action_digest == action_digest(plan)
    assert bound.preview_digest == preview_digest({"summary": "x"})
    assert (bound.permission, bound.action_type) == ("tool.call:shell.exec", "shell.exec")


def test_a_plan_is_read_whole() -> None:
    plan = parse_plan(PLAN_BYTES, "prj-home")
    assert (plan.action_type, plan.project_id) == ("shell.exec", "prj-home")
    assert plan.files == (PlanFile("/srv/a", "a" * 64), PlanFile("/srv/z", "b" * 64))
    assert plan_from_body(plan_body(plan)) == plan


def plan_file(**changes: Any) -> bytes:
    value: dict[str, Any] = {"schema_version": 1, "action_type": "shell.exec", "params": {}}
    value.update(changes)
    kept = {name: member for name, member in value.items() if member != "absent"}
    return json.dumps(kept).encode()


ONE_FILE = {"path": "/a", "sha256": "0" * 64}
FOREIGN_PARAMS: list[Any] = [[], "x", 1, None, True]
FOREIGN_FILES: list[Any] = [None, {}, "x", [1], [None], [[]]]
BAD_PLANS: list[dict[str, Any]] = [
    *({name: "absent"} for name in ("schema_version", "action_type", "params")),
    *({"schema_version": value} for value in (0, 2, "1", None, True, [1])),
    *({"action_type": value} for value in ("", "-x", "a b", "a\n", "x" * 65, 1, None)),
    *({"params": value} for value in FOREIGN_PARAMS),
    *({"files": value} for value in FOREIGN_FILES),
    {"files": [{"path": "/a"}]},
    {"files": [{"sha256": "0" * 64}]},
    {"files": [{**ONE_FILE, "mode": 1}]},
    *({"files": [{**ONE_FILE, "path": path}]} for path in ("", "a", "./a", "/a\n", None, 1)),
    {"files": [{**ONE_FILE, "path": "/" + "x" * 4_096}]},
    *({"files": [{**ONE_FILE, "sha256": digest}]} for digest in ("A" * 64, "0" * 63, None)),
    {"files": [ONE_FILE, ONE_FILE]},
    {"files": [{"path": f"/{n}", "sha256": "0" * 64} for n in range(65)]},
    {"preview": {}},
    {"project_id": PROJECT},
]


@pytest.mark.scenario(5, 35)
@pytest.mark.adr("0003", "3")
@pytest.mark.parametrize("changes", BAD_PLANS)
def test_a_plan_of_any_other_shape_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_plan(plan_file(**changes), PROJECT)
    assert caught.value.code == "invalid_value"


@pytest.mark.parametrize("count", [0, 1, 64])
def test_a_plan_may_list_64_files(count: int) -> None:
    files = [{"path": f"/{n}", "sha256": "0" * 64} for n in range(count)]
    assert len(parse_plan(plan_file(files=files), PROJECT).files) == count


def test_a_plan_fits_into_32_kib_both_as_file_and_as_stored_bytes() -> None:
    def padded(size: int) -> Plan:
        return shell_plan(params={"argv": ["x" * size]})

    room = limits.PLAN_BYTES_MAX - len(plan_body(padded(0)))
    assert len(plan_body(padded(room))) == limits.PLAN_BYTES_MAX
    fitting = plan_file(params={"argv": ["x" * room]})
    assert len(fitting) <= limits.PLAN_BYTES_MAX
    assert parse_plan(fitting, PROJECT).params == {"argv": ["x" * room]}
    over = plan_file(params={"argv": ["x" * (room + 1)]})
    assert len(over) <= limits.PLAN_BYTES_MAX
    with pytest.raises(UsageError) as caught:
        parse_plan(over, PROJECT)
    assert caught.value.code == "too_large"


@pytest.mark.parametrize("path", ["/", "/a", "/a b/夜", "/a/../b", "/" + "x" * 4_095])
def test_a_path_is_absolute(path: str) -> None:
    assert check_path(path, "path") == path


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", plan_file()])
def test_stored_bytes_of_another_shape_are_refused(body: bytes) -> None:
    with pytest.raises(QinglongError):
        plan_from_body(body)


@pytest.mark.parametrize("version", [0, 2, "1", None, True, "absent"])
def test_stored_bytes_of_another_schema_are_refused(version: object) -> None:
    body = json.loads(plan_body(shell_plan()))
    body["schemaVersion"] = version
    if version == "absent":
        del body["schemaVersion"]
    with pytest.raises(QinglongError):
        plan_from_body(json.dumps(body).encode())


@pytest.mark.parametrize("change", [{"params": []}, {"params": None}, {"preview": {}}])
def test_stored_bytes_with_other_members_are_refused(change: JsonObject) -> None:
    body = {**json.loads(plan_body(shell_plan())), **change}
    with pytest.raises(UsageError) as caught:
        plan_from_body(json.dumps(body).encode())
    assert caught.value.code == "invalid_value"


@pytest.mark.adr("0033", "4.1")
@pytest.mark.adr("0033", "4.2")
@pytest.mark.parametrize(
    ("name", "permission", "risk", "capability"),
    [
        ("shell.exec", "tool.call:shell.exec", Risk.MEDIUM, Capability.MANUAL_ONLY),
        ("run.create", "run.start", Risk.MEDIUM, Capability.AUTOMATIC),
        ("run.cancel", "run.stop", Risk.MEDIUM, Capability.AUTOMATIC),
        ("task.publish", "task.update", Risk.LOW, Capability.AUTOMATIC),
        ("package.install", "tool.call:package.install", Risk.HIGH, Capability.AUTOMATIC),
        ("http.request", "tool.call:http.request", Risk.MEDIUM, Capability.MANUAL_ONLY),
    ],
)
def test_a_type_fixes_permission_least_risk_and_capability(
    name: str, permission: str, risk: Risk, capability: Capability
) -> None:
    assert ACTION_TYPES[name] == (check_permission(permission, "permission"), risk, capability)
    assert len(ACTION_TYPES) == 6
    assert is_automatic(name) is (capability is Capability.AUTOMATIC)


def test_evidence_settles_nothing_of_a_type_that_this_build_does_not_know() -> None:
    assert not is_automatic("robot.move")


def test_risks_are_ranked_from_low_to_critical() -> None:
    assert sorted(RISK_RANK, key=RISK_RANK.__getitem__) == [
        Risk.LOW, Risk.MEDIUM, Risk.HIGH, Risk.CRITICAL,
    ]  # fmt: skip


@pytest.mark.adr("0033", "7.3")
@pytest.mark.parametrize("name", ACTION_TYPES)
def test_a_repeat_carries_at_least_high_risk(name: str) -> None:
    assert least_risk(name, repeats=False) is ACTION_TYPES[name].least_risk
    assert least_risk(name, repeats=True) is Risk.HIGH
