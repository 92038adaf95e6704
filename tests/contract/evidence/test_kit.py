"""Every evidence provider passes the kit, and the kit finds each seeded fault by its clause."""

import threading
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.actions.evidence_kit import Failure, Tampered, failures
from qinglong_edge.domain.action import Capability
from qinglong_edge.domain.errors import RowDamagedError
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.receipt import WORDS
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.ports.evidence import EvidenceContext
from tests.contract.evidence.benches import MEMBERS, Honest, ShelfBench, receipt_bench, whole

PROOF = "a" * 64
CONTEXT_FIELDS = (
    "dispatch_id", "approval_request_id", "project_id", "action_type", "action_digest",
    "idempotency_key", "attempt", "started_at_ms", "start",
)  # fmt: skip


def faults(made: type[Honest], **options: int) -> list[Failure]:
    return failures(ShelfBench(made), SystemClocks(), **options)


def clauses(made: type[Honest]) -> set[str]:
    return {failure.clause for failure in faults(made)}


@pytest.mark.adr("0009", "6")
@pytest.mark.slow
@pytest.mark.adr("0033", "2.1")
@pytest.mark.adr("0033", "3.1")
@pytest.mark.adr("0033", "3.2")
@pytest.mark.adr("0033", "4.3")
@pytest.mark.scenario(167, 193, 194)
@pytest.mark.parametrize("action_type", sorted(WORDS))
def test_receipts_in_the_database_keep_the_contract(
    template: str, tmp_path: Path, action_type: str
) -> None:
    with receipt_bench(template, tmp_path, action_type) as bench:
        assert failures(bench, SystemClocks()) == []


def test_an_honest_provider_keeps_the_contract() -> None:
    assert faults(Honest) == []


@pytest.mark.adr("0033", "3.1")
def test_the_kit_tampers_with_every_field_that_a_proof_binds() -> None:
    """The list of ADR-0033, 3."""
    assert [each.value for each in Tampered] == [
        "schema_version", "dispatch_id", "approval_request_id", "project_id", "action_type",
        "action_digest", "attempt", "started_at_ms", "idempotency_key", "outcome", "result_code",
        "finished_at_ms", "receipt_id",
    ]  # fmt: skip


class Hasty(Honest):
    """Take an absence for a failure."""

    def absent(self) -> Evidence:
        return Evidence(Finding.VERIFIED_FAILED, "nothing_there", PROOF)


def test_a_conclusion_from_absence_is_found() -> None:
    assert clauses(Hasty) == {"absence_is_missing"}


class Blind(Honest):
    """Never believe a proof."""

    def verdict(self, digest: str) -> Evidence:
        return Evidence(Finding.UNSUPPORTED, "cannot_tell")


def test_a_proof_that_is_never_believed_is_found() -> None:
    """Such a provider is manual_only and should say so."""
    assert clauses(Blind) == {"whole_proof_is_verified"}


class Proofless(Honest):
    """Verify without saying by what."""

    def verdict(self, digest: str) -> Evidence:
        return Evidence(Finding.VERIFIED_SUCCEEDED, "proof_verified")


def test_a_verdict_without_a_digest_is_found() -> None:
    assert faults(Proofless) == [
        Failure("verified_names_a_digest", "verified_succeeded without a digest")
    ]


class Lax(Honest):
    """Take a proof that says more than its shape allows."""

    def exact(self, proof: dict[str, Any]) -> bool:
        return True


def test_an_unknown_member_that_is_believed_is_found() -> None:
    assert clauses(Lax) == {"unknown_member_is_conflict"}


class Patient(Honest):
    """Read as much as there is."""

    def fits(self, body: bytes) -> bool:
        return True


def test_an_oversize_proof_that_is_believed_is_found() -> None:
    assert clauses(Patient) == {"oversize_is_conflict"}


class Optimistic(Honest):
    """Conclude from silence that it went well."""

    def unreachable(self) -> Evidence:
        return Evidence(Finding.VERIFIED_SUCCEEDED, "probably", PROOF)


class Pessimistic(Honest):
    """Take silence for an absence."""

    def unreachable(self) -> Evidence:
        return self.absent()


@pytest.mark.parametrize("made", [Optimistic, Pessimistic])
def test_a_conclusion_from_silence_is_found(made: type[Honest]) -> None:
    assert clauses(made) == {"unavailable_concludes_nothing"}


class Silent(Honest):
    """Say that the source is unavailable, in place of raising it."""

    def unreachable(self) -> Evidence:
        return Evidence(Finding.UNAVAILABLE, "source_silent")


def test_a_source_may_also_be_called_unavailable() -> None:
    assert faults(Silent) == []


class Trusting(Honest):
    """Compare the identity and never ask who vouches for the proof."""

    def vouched(self, proof: dict[str, Any]) -> bool:
        return True


@pytest.mark.adr("0033", "3.1")
def test_a_proof_that_nobody_vouches_for_is_found_where_only_that_tells() -> None:
    assert clauses(Trusting) == {
        f"tampered_{name}_is_conflict"
        for name in ("outcome", "result_code", "finished_at_ms", "receipt_id")
    }


class Unbound(Honest):
    """Ask who vouches for the proof and never whose it is."""

    def bound(self, proof: dict[str, Any], context: EvidenceContext) -> bool:
        return True


@pytest.mark.adr("0033", "3.1")
def test_a_proof_of_another_action_that_is_believed_is_found() -> None:
    assert clauses(Unbound) == {f"another_{name}_is_not_verified" for name in CONTEXT_FIELDS}


def careless(member: str) -> type[Honest]:
    """Return a provider that compares everything but one member."""

    class Careless(Trusting):
        def bound(self, proof: dict[str, Any], context: EvidenceContext) -> bool:
            known = whole(context)
            return {name for name in known if proof[name] != known[name]} <= {member}

    return Careless


@pytest.mark.adr("0009", "8")
@pytest.mark.adr("0033", "3.1")
@pytest.mark.parametrize("field", list(Tampered))
def test_a_member_that_is_not_compared_is_found(field: Tampered) -> None:
    found = clauses(careless(MEMBERS[field]))
    mine = {name for name in found if not name.startswith("another_")}
    assert mine == {f"tampered_{field.value}_is_conflict"}


class Repairing(Honest):
    """Put things right where there is nothing."""

    def absent(self) -> Evidence:
        self.shelf.touched += 1
        return super().absent()


class Cleaning(Honest):
    """Remove a proof that does not fit."""

    def exact(self, proof: dict[str, Any]) -> bool:
        if super().exact(proof):
            return True
        self.shelf.body = None
        return False


class Counting(Honest):
    """Remember, now and then, that somebody looked."""

    looks = 0

    def verdict(self, digest: str) -> Evidence:
        self.looks += 1
        self.shelf.touched += self.looks % 50 == 0
        return super().verdict(digest)


@pytest.mark.adr("0033", "2.1")
@pytest.mark.scenario(167)
@pytest.mark.parametrize("made", [Repairing, Cleaning, Counting])
def test_a_side_effect_of_looking_is_found(made: type[Honest]) -> None:
    assert clauses(made) == {"looking_changes_nothing"}


class Wavering(Honest):
    """Call the same proof by ever another code."""

    looks = 0

    def verdict(self, digest: str) -> Evidence:
        self.looks += 1
        return Evidence(Finding.VERIFIED_SUCCEEDED, f"look_{self.looks % 3}", digest)


def test_an_answer_that_changes_is_found() -> None:
    assert clauses(Wavering) == {"looking_again_says_the_same"}


class Talkative(Honest):
    """Answer in a shape of its own."""

    def verdict(self, digest: str) -> Any:
        return {"finding": "verified_succeeded", "note": "s3cret"}


class Sloppy(Honest):
    """Answer with words that are none."""

    def verdict(self, digest: str) -> Evidence:
        return Evidence("done", "s3cret text", digest)  # type: ignore[arg-type]


class Shouting(Honest):
    """Answer with a digest that is none."""

    def verdict(self, digest: str) -> Evidence:
        return Evidence(Finding.VERIFIED_SUCCEEDED, "proof_verified", digest.upper())


@pytest.mark.parametrize("made", [Talkative, Sloppy, Shouting])
def test_a_malformed_answer_is_found_and_not_repeated(made: type[Honest]) -> None:
    found = faults(made)
    assert {failure.clause for failure in found} == {"answers_with_evidence"}
    assert "s3cret" not in str(found)


class Fragile(Honest):
    """Break over a proof that does not fit."""

    def fits(self, body: bytes) -> bool:
        if super().fits(body):
            return True
        raise RowDamagedError("row_damaged", "s3cret text")


def test_raising_is_no_answer_where_the_source_answers() -> None:
    assert faults(Fragile) == [Failure("oversize_is_conflict", "raised RowDamagedError")]


def test_a_look_that_does_not_end_is_found() -> None:
    gate = threading.Event()

    class Stuck(Honest):
        def unreachable(self) -> Evidence:
            gate.wait(5)
            return super().unreachable()

    found = faults(Stuck, deadline_ms=50)
    gate.set()
    assert Failure("unavailable_concludes_nothing", "no answer within the deadline") in found


class Armed(EvidenceContext):
    """Carry something that a provider could act with."""


@pytest.mark.adr("0033", "2.1")
@pytest.mark.scenario(157)
def test_a_context_that_can_do_something_is_found() -> None:
    bench = ShelfBench(Honest)
    acts: Any = lambda: None  # noqa: E731 - anything that can be called
    for context in (Armed(*bench.context), bench.context._replace(observed_at_ms=acts)):
        bench.context = context
        found = {failure.clause for failure in failures(bench, SystemClocks())}
        assert found == {"context_cannot_execute"}


class Modest(Honest):
    """Say that nobody can tell, whatever there is."""

    action_type = "shell.exec"
    capability = Capability.MANUAL_ONLY

    def inspect(self, context: EvidenceContext) -> Evidence:
        return Evidence(Finding.UNSUPPORTED, "no_evidence")


class Mute(Modest):
    """Have nothing to look at, and raise it."""

    def inspect(self, context: EvidenceContext) -> Evidence:
        return self.unreachable()


class Boasting(Modest):
    """Verify in spite of being manual_only."""

    def inspect(self, context: EvidenceContext) -> Evidence:
        return Honest.inspect(self, context)


@pytest.mark.adr("0033", "4.1")
def test_a_manual_only_provider_says_nothing_that_settles() -> None:
    assert faults(Modest) == faults(Mute) == []
    assert clauses(Boasting) == {"manual_only_never_verifies"}


class Presumptuous(Modest):
    """Be automatic for a type that is manual_only."""

    capability = Capability.AUTOMATIC


class Nameless(Modest):
    """Look for no type at all."""

    action_type = "shell exec"


class Undecided(Modest):
    """Declare a word of its own."""

    capability: Any = "automatic"


@pytest.mark.adr("0033", "4.1")
@pytest.mark.adr("0033", "4.2")
@pytest.mark.parametrize("made", [Presumptuous, Nameless, Undecided])
def test_a_provider_that_declares_what_it_may_not_be_is_found(made: type[Honest]) -> None:
    assert "declares_its_type_and_capability" in clauses(made)
