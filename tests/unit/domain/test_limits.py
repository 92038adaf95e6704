import ast
import datetime as dt
from pathlib import Path

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import InvariantBroken

CONTRACT = {
    "ID_CHARS_MAX": 64,
    "ACTION_REF_CHARS_MAX": 255,
    "SUBJECT_ID_CHARS_MAX": 255,
    "PROJECT_ID_CHARS_MAX": 128,
    "SLUG_CHARS_MAX": 128,
    "PERMISSION_CHARS_MAX": 255,
    "LEASE_NAME_CHARS_MAX": 128,
    "SAFE_INTEGER_MAX": 9_007_199_254_740_991,
    "VERSION_MAX": 2_147_483_647,
    "APPROVAL_LIFETIME_MS_MAX": 86_400_000,
    "STRONG_AUTHENTICATION_AGE_MS_MAX": 300_000,
    "ATTEMPTS_MAX": 16,
    "ATTEMPTS_DEFAULT": 5,
    "LEASE_MS_MAX": 600_000,
    "PAGE_ITEMS_MAX": 64,
    "PHASE_PAGES_MAX": 64,
    "RETRY_BASE_MS": 1_000,
    "RETRY_MS_MAX": 60_000,
    "RETRY_EXPONENT_MAX": 30,
    "INTERVAL_MS_MAX": 86_400_000,
}
ARCHITECTURE = {
    "EPOCH_MAX": 2_097_151,
    "TICK_MS_BITS": 42,
    "OPEN_APPROVALS_PER_REQUESTER_MAX": 32,
    "OPEN_APPROVALS_PER_PROJECT_MAX": 256,
    "PLAN_BYTES_MAX": 32_768,
    "HANDLER_DEADLINE_MS_DEFAULT": 30_000,
    "HANDLER_DEADLINE_MS_MAX": 600_000,
    "PAGE_SLACK_MS": 30_000,
    "CYCLE_START_MS_MAX": 60_000,
    "COMPLETE_HELD_MS_MAX": 200,
    "SHELL_TIMEOUT_MS_DEFAULT": 30_000,
    "SHELL_TIMEOUT_MS_MAX": 590_000,
    "WAITING_RETRY_MS_MIN": 30_000,
    "WAITING_RETRY_MS_MAX": 600_000,
    "SHELL_STOP_MS": 10_000,
    "SHELL_TERM_GRACE_MS": 5_000,
    "CLOCK_BACK_MS_MAX": 300_000,
    "CLOCK_STEP_MS_MAX": 86_400_000,
    "CLOCK_SETTLE_MS": 600_000,
    "OWNER_WAIT_MS": 5_000,
}


@pytest.mark.parametrize(("name", "value"), [*CONTRACT.items(), *ARCHITECTURE.items()])
def test_a_bound_is_the_documented_one(name: str, value: int) -> None:
    assert getattr(limits, name) == value


def test_every_bound_is_a_positive_integer_and_says_its_unit() -> None:
    units = ("_MAX", "_MIN", "_DEFAULT", "_MS", "_BITS")
    bounds = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert len(bounds) > len(CONTRACT)
    for name, value in bounds.items():
        assert type(value) is int, name
        assert value > 0 or name == "PRIORITY_MIN", name
        assert name.endswith(units), name


def test_the_build_date_is_a_day_and_the_comment_names_it() -> None:
    day = dt.datetime.fromtimestamp(limits.BUILD_WALL_MS / 1_000, dt.UTC)
    assert (day.hour, day.minute, day.second, day.microsecond) == (0, 0, 0, 0)
    lines = Path(limits.__file__).read_text(encoding="utf-8").splitlines()
    assert [
        line for line in lines if line.startswith("BUILD_WALL_MS") and f"# {day:%Y-%m-%d}" in line
    ]


def test_the_largest_tick_is_a_positive_63_bit_integer() -> None:
    assert limits.EPOCH_MAX << limits.TICK_MS_BITS | (1 << limits.TICK_MS_BITS) - 1 == 2**63 - 1


def test_a_shell_action_ends_before_its_handler_and_its_lease() -> None:
    assert limits.SHELL_TIMEOUT_MS_MAX + limits.SHELL_STOP_MS <= limits.HANDLER_DEADLINE_MS_MAX
    assert limits.HANDLER_DEADLINE_MS_MAX <= limits.LEASE_MS_MAX


@pytest.mark.parametrize(
    ("name", "value"),
    [("SHELL_TIMEOUT_MS_MAX", 590_001), ("LEASE_MS_MAX", 599_999), ("SHELL_TERM_GRACE_MS", 10_000)],
)
def test_a_broken_relation_stops_the_import(name: str, value: int) -> None:
    tree = ast.parse(Path(limits.__file__).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            node.value = ast.copy_location(ast.Constant(value), node.value)
    with pytest.raises(InvariantBroken):
        exec(compile(tree, "limits", "exec"), {"__name__": "limits"})
