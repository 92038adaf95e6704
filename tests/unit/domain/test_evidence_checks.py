"""The fields of what recovery is asked and told, before anything is read."""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.evidence import (
    Evidence,
    believed,
    check_claim_scan,
    check_evidence,
    check_observe,
    check_renew_scan,
)
from qinglong_edge.domain.recovery import Decision, Finding
from qinglong_edge.domain.resolution import check_by_evidence, check_by_person
from tests.support.recovering import (
    MISSING,
    PROOF,
    VERIFIED,
    claim_scan,
    evidence_command,
    observe_command,
    person_command,
    renew_scan,
)

BAD_IDS: list[Any] = ["", "-x", "a b", "a\n", "夜", "x" * 65, 1, None, True]
BAD_NAMES: list[Any] = ["", "-x", "a b", "x" * 129, 1, None]
BAD_LENGTHS: list[Any] = [0, -1, limits.LEASE_MS_MAX + 1, 1.0, "1", None, True]
BAD_CODES: list[Any] = ["", "-x", "x" * 65, "a b", 1, None]
BAD_DIGESTS: list[Any] = ["", "A" * 64, "a" * 63, "a" * 65, "g" * 64, 1, b"a" * 64]


def spoiled(make: Callable[..., Any], field: str, values: list[Any]) -> list[Any]:
    return [make(**{field: value}) for value in values]


def evidences(values: list[Any]) -> list[Any]:
    """Return both commands that carry evidence, with each of these."""
    observed = spoiled(observe_command, "evidence", values)
    return observed + spoiled(evidence_command, "evidence", values)


BAD_EVIDENCE: list[Any] = [
    None, "missing", Finding.MISSING, (), {},
    ("missing", "code", None), (Finding.MISSING, "code", None),
    MISSING._replace(finding="missing"),  # type: ignore[arg-type]
    MISSING._replace(finding="lost"),  # type: ignore[arg-type]
    MISSING._replace(finding=None),  # type: ignore[arg-type]
    MISSING._replace(finding=Decision.CONFIRM_FAILED),  # type: ignore[arg-type]
    VERIFIED._replace(evidence_digest=None),
    Evidence(Finding.VERIFIED_FAILED, "code"),
    *(MISSING._replace(result_code=code) for code in BAD_CODES),
    *(MISSING._replace(evidence_digest=digest) for digest in BAD_DIGESTS),
    *(VERIFIED._replace(evidence_digest=digest) for digest in BAD_DIGESTS),
]  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        claim_scan(),
        claim_scan(dispatch_id="x" * 64, owner="o" * 128, token="t" * 128),
        claim_scan(lease_ms=1),
        claim_scan(lease_ms=limits.LEASE_MS_MAX),
    ],
)
def test_a_well_formed_claim_passes(event: Any) -> None:
    assert check_claim_scan(event) is event


@pytest.mark.parametrize(
    "event",
    [
        *spoiled(claim_scan, "dispatch_id", BAD_IDS),
        *spoiled(claim_scan, "owner", BAD_NAMES),
        *spoiled(claim_scan, "token", BAD_NAMES),
        *spoiled(claim_scan, "lease_ms", BAD_LENGTHS),
    ],
)
def test_a_claim_with_a_wrong_field_is_refused(event: Any) -> None:
    with pytest.raises(UsageError):
        check_claim_scan(event)


@pytest.mark.parametrize("lease_ms", BAD_LENGTHS)
def test_a_renewal_has_a_length(lease_ms: Any) -> None:
    for good in (renew_scan(lease_ms=1), renew_scan(lease_ms=limits.LEASE_MS_MAX)):
        assert check_renew_scan(good) is good
    with pytest.raises(UsageError):
        check_renew_scan(renew_scan(lease_ms=lease_ms))


@pytest.mark.scenario(137, 145)
@pytest.mark.adr("0033", "2.1")
@pytest.mark.parametrize("finding", Finding)
def test_a_finding_is_either_observed_or_settles(finding: Finding) -> None:
    evidence = Evidence(finding, "seen", PROOF)
    observed = observe_command(evidence=evidence)
    settling = evidence_command(evidence=evidence)
    if finding.value.startswith("verified_"):
        assert check_by_evidence(settling) is settling
        with pytest.raises(UsageError):
            check_observe(observed)
    else:
        assert check_observe(observed) is observed
        with pytest.raises(UsageError):
            check_by_evidence(settling)


@pytest.mark.scenario(137, 162)
@pytest.mark.parametrize(
    "event",
    [
        *spoiled(observe_command, "mutation_id", BAD_IDS),
        *spoiled(evidence_command, "mutation_id", BAD_IDS),
        *evidences(BAD_EVIDENCE),
    ],
)
def test_no_wrong_field_becomes_a_finding_or_a_verdict(event: Any) -> None:
    for check in (check_observe, check_by_evidence):
        with pytest.raises(UsageError):
            check(event)


@pytest.mark.scenario(161, 162)
@pytest.mark.adr("0033", "2.1")
@pytest.mark.parametrize("value", BAD_EVIDENCE)
def test_a_malformed_answer_of_a_provider_is_a_conflict_and_no_verdict(value: Any) -> None:
    assert believed(value) == Evidence(Finding.CONFLICT, "recovery_evidence_invalid")


class More(Evidence):
    """Evidence with something else in its pocket."""


@pytest.mark.scenario(161)
def test_evidence_of_another_shape_is_a_conflict() -> None:
    assert believed(More(*VERIFIED)).finding is Finding.CONFLICT


@pytest.mark.scenario(162)
@pytest.mark.parametrize(
    "value",
    [MISSING, MISSING._replace(evidence_digest=PROOF), VERIFIED, Evidence(*VERIFIED[:2], PROOF)],
)
def test_a_well_formed_answer_is_believed_as_it_stands(value: Evidence) -> None:
    assert believed(value) is value
    assert check_evidence(value) is value


@pytest.mark.parametrize(
    "event",
    [
        person_command(),
        person_command(execution_version=1, recovery_version=0),
        person_command(execution_version=limits.VERSION_MAX, recovery_version=limits.VERSION_MAX),
        person_command(evidence_digest=PROOF, reason_code="x" * 64, mutation_id="x" * 64),
        *(person_command(decision=decision) for decision in Decision),
    ],
)
def test_a_well_formed_word_of_a_person_passes(event: Any) -> None:
    assert check_by_person(event) is event


@pytest.mark.parametrize(
    "event",
    [
        *spoiled(person_command, "dispatch_id", BAD_IDS),
        *spoiled(person_command, "mutation_id", BAD_IDS),
        *spoiled(person_command, "reason_code", BAD_CODES),
        *spoiled(person_command, "evidence_digest", BAD_DIGESTS),
        *spoiled(person_command, "execution_version", [0, -1, 2**31, 1.0, "1", None, True]),
        *spoiled(person_command, "recovery_version", [-1, 2**31, 1.0, "1", True]),
    ],
)
def test_a_word_of_a_person_with_a_wrong_field_is_refused(event: Any) -> None:
    with pytest.raises(UsageError):
        check_by_person(event)
