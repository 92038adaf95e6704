"""What becomes the command line of a process: exactly what was approved, or nothing."""

from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.command_line import ENV_ITEMS_MAX, parse_argv, parse_env
from qinglong_edge.domain.errors import UsageError

MANY = limits.ARGV_ITEMS_MAX


@pytest.mark.parametrize(
    "argv",
    [
        ["x"],
        ["x"] * MANY,
        ["/bin/sh", "-c", ""],
        [" ", "\t\n\x01\x1f\x7f", "夜间 \U0001f600", "-", "--x=y"],
    ],
)
def test_arguments_are_taken_as_they_are(argv: list[str]) -> None:
    assert parse_argv(argv, "argv") == tuple(argv)


@pytest.mark.parametrize(
    "argv",
    [
        None, "x", {}, {"0": "x"}, 1, True, ("x",), [], ["x"] * (MANY + 1), [""], ["", "x"], [None],
        ["x", None], ["x", 1], ["x", True], ["x", ["y"]], ["x", b"y"], ["x", "a\0b"], ["\0"],
        ["x", "\ud800"], ["\udfffx"],
    ],
)  # fmt: skip
def test_what_no_process_can_be_started_with_is_refused(argv: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse_argv(argv, "task.argv")
    assert str(caught.value.details["field"]).startswith("task.argv")


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"A": "", "_": "x", "a_1": "new\nline 夜"},
        {"QINGLONG_EDG": "x", "XQINGLONG_EDGE_": "x", "qinglong_edge_state": "x"},
        {f"N{at}": "x" for at in range(ENV_ITEMS_MAX)},
    ],
)
def test_variables_are_taken_as_they_are(env: dict[str, str]) -> None:
    taken = parse_env(env, "env")
    assert taken == env
    assert taken is not env


@pytest.mark.parametrize(
    "env",
    [
        None, [], "A=b", 1, True, {f"N{at}": "x" for at in range(ENV_ITEMS_MAX + 1)}, {"": "x"},
        {"1A": "x"}, {"A-B": "x"}, {"A B": "x"}, {"A=B": "x"}, {"A\n": "x"}, {"Ä": "x"},
        {"夜": "x"}, {"A\0": "x"}, {"A": None}, {"A": 1}, {"A": True}, {"A": ["x"]},
        {"A": "a\0b"}, {"A": "\udc80"}, {"QINGLONG_EDGE_": "x"}, {"QINGLONG_EDGE_TOKEN": "x"},
    ],
)  # fmt: skip
def test_what_is_no_environment_or_ours_is_refused(env: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse_env(env, "task.env")
    assert caught.value.details == {"field": "task.env"}
