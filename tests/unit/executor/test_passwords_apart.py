"""Passwords are stretched by a real child, and a child that fails is no answer."""

import sys

import pytest

from qinglong_edge.domain.errors import UnavailableError, UsageError
from qinglong_edge.executor import program
from qinglong_edge.executor.passwords import verify
from qinglong_edge.executor.passwords_apart import Apart

PASSWORD = "correct horse battery"


@pytest.mark.adr("0008", "8")
def test_a_child_sets_and_checks_a_password() -> None:
    apart = Apart()
    hashed = apart.hash(PASSWORD)
    assert verify(PASSWORD, hashed)
    assert apart.verify(PASSWORD, hashed)
    assert not apart.verify("another password", hashed)


def test_a_password_that_may_not_be_set_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(UsageError):
        Apart().hash("short")


def test_without_a_child_the_password_is_neither_right_nor_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed = Apart().hash(PASSWORD)
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(UnavailableError) as caught:
        Apart().verify(PASSWORD, hashed)
    assert caught.value.code == "password_check_unavailable"


def test_the_program_is_named_by_its_own_place() -> None:
    words = program.command("cli.main", "run")
    assert words[1:4] == ["-I", "-S", "-B"]
    assert "qinglong_edge.cli.main import run" in words[5]
