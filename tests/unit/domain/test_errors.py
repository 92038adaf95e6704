import pytest

from qinglong_edge.domain import errors
from qinglong_edge.domain.errors import (
    CommitUnknownError,
    DamagedError,
    InvariantBroken,
    QinglongError,
    RefusedError,
    RowDamagedError,
    UnavailableError,
    UsageError,
    exit_code_of,
)

FAMILIES = (UsageError, RefusedError, UnavailableError, DamagedError)


@pytest.mark.parametrize("family", [*FAMILIES, CommitUnknownError])
def test_an_error_carries_code_message_and_details(family: type[QinglongError]) -> None:
    error = family("some_code", "for people", {"version": 3, "seqs": [1, None, "x", True]})
    assert (error.code, error.message, str(error)) == ("some_code", "for people", "for people")
    assert error.details == {"version": 3, "seqs": [1, None, "x", True]}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_error_without_details_has_empty_ones_of_its_own(family: type[QinglongError]) -> None:
    first, second = family("code", "text"), family("code", "text")
    first.details["seen"] = True
    assert second.details == {}


def test_only_the_environment_is_worth_a_retry() -> None:
    retryable = {family for family in (*FAMILIES, CommitUnknownError) if family.retryable}
    assert retryable == {UnavailableError, CommitUnknownError}
    assert not InvariantBroken.retryable


@pytest.mark.parametrize(
    ("family", "code"),
    [
        (UsageError, 2),
        (RefusedError, 3),
        (UnavailableError, 4),
        (CommitUnknownError, 4),
        (DamagedError, 5),
        (RowDamagedError, 5),
        (QinglongError, 70),
    ],
)
def test_a_family_has_its_exit_code(family: type[QinglongError], code: int) -> None:
    assert exit_code_of(family("code", "text")) == code


def test_a_broken_invariant_ends_as_a_bug() -> None:
    assert exit_code_of(InvariantBroken("two parts disagree")) == 70


def test_no_family_catches_another() -> None:
    caught = {(a, b) for a in (*FAMILIES, InvariantBroken) for b in FAMILIES if issubclass(a, b)}
    assert caught == {(family, family) for family in FAMILIES}


def test_an_ambiguous_commit_is_an_unavailable_environment() -> None:
    assert issubclass(CommitUnknownError, UnavailableError)


def test_a_broken_invariant_has_a_fixed_code() -> None:
    error = InvariantBroken("two parts disagree", {"row": 1})
    assert (error.code, error.message) == ("invariant_broken", "two parts disagree")
    assert error.details == {"row": 1}


def test_every_error_is_one_of_ours_and_says_what_to_do() -> None:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    families = [value for value in found if issubclass(value, Exception)]
    assert set(families) == {
        QinglongError,
        *FAMILIES,
        CommitUnknownError,
        RowDamagedError,
        InvariantBroken,
    }
    assert all(family.__doc__ and issubclass(family, QinglongError) for family in families)
