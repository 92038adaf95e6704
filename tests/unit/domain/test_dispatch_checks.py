"""The fields of dispatch commands, proven before anything is read."""

from typing import Any

import pytest

from qinglong_edge.domain.dispatch import Complete, Release, Renew
from qinglong_edge.domain.dispatch_checks import (
    check_claim,
    check_complete,
    check_release,
    check_renew,
)
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.execution import Outcome
from tests.support.builders import LEASE_MS, claim_command, fence

RENEW = Renew("dsp-1", fence(1), LEASE_MS)
RELEASE = Release("dsp-1", fence(1), "rel-1", "busy", 4_000)
COMPLETE = Complete("dsp-1", fence(2), "done-1", Outcome.SUCCEEDED, "done")
BAD_NAMES = ("", "x" * 65, "a b", "a\n", "-a")
BAD_RESULTS: list[dict[str, Any]] = [
    {name: value} for name in ("mutation_id", "result_code") for value in BAD_NAMES
]


@pytest.mark.scenario(84, 124)
@pytest.mark.parametrize(
    "change",
    [
        *({"lease_ms": value} for value in (0, 600_001, -1, 1.5, True)),
        *({"owner": value} for value in ("", "x" * 129, "a b", "a\n", "-a")),
        *({"token": value} for value in ("", "x" * 129, "a b", "a\n", "-a")),
        *({"dispatch_id": value} for value in ("", "x" * 65, "a\n")),
    ],
)
def test_a_malformed_claim_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_claim(claim_command(**change))


@pytest.mark.scenario(84)
@pytest.mark.parametrize(
    "change", [{}, {"lease_ms": 1}, {"lease_ms": 600_000}, {"owner": "x" * 128, "token": "y" * 128}]
)
def test_a_claim_within_its_bounds_is_kept(change: dict[str, Any]) -> None:
    asked = claim_command(**change)
    assert check_claim(asked) is asked


@pytest.mark.scenario(98)
@pytest.mark.parametrize("lease_ms", [0, 600_001, -1, 1.5, True])
def test_a_malformed_renewal_is_refused(lease_ms: Any) -> None:
    with pytest.raises(UsageError):
        check_renew(RENEW._replace(lease_ms=lease_ms))


@pytest.mark.parametrize("lease_ms", [1, 600_000])
def test_a_renewal_within_its_bounds_is_kept(lease_ms: int) -> None:
    asked = RENEW._replace(lease_ms=lease_ms)
    assert check_renew(asked) is asked


@pytest.mark.parametrize(
    "change",
    [*BAD_RESULTS, *({"retry_after_ms": value} for value in (-1, 86_400_001, 1.5, True))],
)
def test_a_malformed_release_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_release(RELEASE._replace(**change))


@pytest.mark.parametrize("retry_after_ms", [None, 0, 86_400_000])
def test_a_release_within_its_bounds_is_kept(retry_after_ms: int | None) -> None:
    asked = RELEASE._replace(retry_after_ms=retry_after_ms)
    assert check_release(asked) is asked


@pytest.mark.parametrize("change", BAD_RESULTS)
def test_a_malformed_completion_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_complete(COMPLETE._replace(**change))


def test_a_completion_within_its_bounds_is_kept() -> None:
    assert check_complete(COMPLETE) is COMPLETE
