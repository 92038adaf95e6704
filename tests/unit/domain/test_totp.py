import base64
import hmac
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from qinglong_edge.domain import totp
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.identity import Assurance, IdentityRefusal, Principal
from qinglong_edge.domain.tick import Trust
from qinglong_edge.domain.totp import RecoveryCode, TotpKey
from tests.support.builders import ANA, BOB, at
from tests.support.clock import WALL_MS

SECRET = b"12345678901234567890"  # of the vectors in RFC 4226 and RFC 6238
KEY = TotpKey(ANA, SECRET, 0, WALL_MS)
HERE = WALL_MS // totp.STEP_MS
SINGLE = Principal(ANA, Assurance.SINGLE_FACTOR, "ses-1", at(0).at_ms, at(0).tick)
MULTI = SINGLE._replace(assurance=Assurance.MULTI_FACTOR)
REFUSED = IdentityRefusal.FACTOR_REFUSED

RFC_4226 = [
    "755224", "287082", "359152", "969429", "338314", "254676", "287922", "162583", "399871",
    "520489",
]  # fmt: skip
RFC_6238 = [
    (59, "94287082"),
    (1_111_111_109, "07081804"),
    (1_111_111_111, "14050471"),
    (1_234_567_890, "89005924"),
    (2_000_000_000, "69279037"),
    (20_000_000_000, "65353130"),
]


def code_of(step: int) -> str:
    return totp.hotp(SECRET, step)


@pytest.mark.adr("0006", "8")
@pytest.mark.parametrize(("counter", "code"), list(enumerate(RFC_4226)))
def test_the_vectors_of_rfc_4226(counter: int, code: str) -> None:
    assert totp.hotp(SECRET, counter) == code


@pytest.mark.adr("0006", "8")
@pytest.mark.parametrize(("second", "code"), RFC_6238)
def test_the_vectors_of_rfc_6238(second: int, code: str) -> None:
    step = second * 1_000 // totp.STEP_MS
    assert totp.hotp(SECRET, step, digits=8) == code


RFC_2202 = [
    (b"\x0b" * 20, b"Hi There", "b617318655057264e28bc0b6fb378c8ef146be00"),
    (b"Jefe", b"what do ya want for nothing?", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
    (
        b"\xaa" * 80,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "aa4ae5e15272d00e95705637ce8a3b55ed402112",
    ),
]


@pytest.mark.parametrize(("key", "message", "mac"), RFC_2202)
def test_the_vectors_of_rfc_2202(key: bytes, message: bytes, mac: str) -> None:
    assert totp.hmac_sha1(key, message).hex() == mac


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65])
def test_hmac_is_the_one_of_the_library_around_the_block_size(size: int) -> None:
    assert totp.hmac_sha1(b"k" * size, b"m") == hmac.digest(b"k" * size, b"m", "sha1")


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_a_code_counts_one_step_to_either_side(off: int) -> None:
    step = HERE + off
    assert totp.accept(KEY, code_of(step), at(0)) == Changed(KEY._replace(last_step=step))


@pytest.mark.parametrize("off", [-2, 2])
def test_a_code_further_away_is_refused(off: int) -> None:
    assert totp.accept(KEY, code_of(HERE + off), at(0)) is REFUSED


@pytest.mark.adr("0006", "8")
@pytest.mark.parametrize("last", [HERE, HERE + 1])
def test_a_step_is_accepted_once_and_only_upwards(last: int) -> None:
    assert totp.accept(KEY._replace(last_step=last), code_of(HERE), at(0)) is REFUSED
    assert totp.accept(KEY._replace(last_step=HERE - 1), code_of(HERE), at(0)) == Changed(
        KEY._replace(last_step=HERE)
    )


def test_without_a_key_no_code_is_right() -> None:
    for off in (-1, 0, 1):
        assert totp.accept(None, totp.hotp(bytes(20), HERE + off), at(0)) is REFUSED


def test_the_wall_counts_and_not_the_time_of_deadlines() -> None:
    """A router whose clock was put back a little still agrees with the phone."""
    now = at(0)
    behind = now._replace(reading=now.reading._replace(wall_ms=WALL_MS - 240_000))
    code = code_of((WALL_MS - 240_000) // totp.STEP_MS)
    assert isinstance(totp.accept(KEY, code, behind), Changed)


@pytest.mark.adr("0006", "9")
@pytest.mark.parametrize("trust", [Trust.UNTRUSTED, Trust.SETTLED])
def test_a_clock_that_is_not_believed_accepts_no_code(trust: Trust) -> None:
    now = at(0, trust=trust)
    for key in (KEY, None):
        assert totp.accept(key, code_of(HERE), now) is IdentityRefusal.CLOCK_UNTRUSTED


def test_a_wall_at_the_beginning_of_time_has_no_step_before_it() -> None:
    now = at(0)
    early = now._replace(reading=now.reading._replace(wall_ms=0))
    assert totp.accept(KEY, code_of(1), early) == Changed(KEY._replace(last_step=1))


@pytest.mark.parametrize(
    "code", ["", "12345", "1234567", "12345a", " 12345", "١٢٣٤٥٦", 123456, None, "+12345"]
)
def test_what_is_no_code(code: object) -> None:
    with pytest.raises(UsageError) as caught:
        totp.check_code(code, "totp")
    assert caught.value.code == "invalid_value"


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [(b"", b"", True), (b"a", b"a", True), (b"a", b"b", False), (b"a", b"ab", False)],
)
def test_comparing_without_a_short_cut(left: bytes, right: bytes, *, equal: bool) -> None:
    assert totp.same(left, right) is equal


def test_a_seed_makes_the_same_things_again_and_another_seed_others() -> None:
    made = totp.enrolment(b"seed")
    assert made == totp.enrolment(b"seed")
    other = totp.enrolment(b"other")
    assert len(made.secret) == totp.SECRET_BYTES
    assert made.secret != other.secret
    assert len({*made.codes, *other.codes}) == 2 * totp.RECOVERY_CODES


def test_a_recovery_code_is_four_groups_that_nobody_misreads() -> None:
    for code in totp.enrolment(b"seed").codes:
        groups = code.split("-")
        assert [len(group) for group in groups] == [5, 5, 5, 5]
        assert not set("".join(groups)) & set("ILOU")


def test_a_recovery_code_is_read_as_it_was_meant() -> None:
    code = totp.enrolment(b"seed").codes[0]
    digest = totp.recovery_digest(code, "recovery_code")
    for written in (code.lower(), code.replace("-", ""), f" {code}\n", code.replace("-", " ")):
        assert totp.recovery_digest(written, "recovery_code") == digest
    assert totp.recovery_digest("O" * 20, "c") == totp.recovery_digest("0" * 20, "c")
    assert totp.recovery_digest("l" * 20, "c") == totp.recovery_digest("1" * 20, "c")
    assert code not in digest


@pytest.mark.parametrize(
    "code", ["", "A" * 19, "A" * 21, "U" * 20, "É" * 20, "\ud800" * 20, None, 7]
)
def test_what_is_no_recovery_code(code: object) -> None:
    with pytest.raises(UsageError) as caught:
        totp.recovery_digest(code, "recovery_code")
    assert caught.value.code == "invalid_value"


@pytest.mark.adr("0006", "8")
def test_a_recovery_code_works_once_for_its_user_on_any_clock() -> None:
    code = RecoveryCode(ANA, "0" * 64, None)
    now = at(7, trust=Trust.UNTRUSTED)
    used = code._replace(used_at_ms=WALL_MS + 7)
    assert totp.spend(code, ANA, now) == Changed(used)
    assert totp.spend(used, ANA, now) is REFUSED
    assert totp.spend(code, BOB, now) is REFUSED
    assert totp.spend(None, ANA, now) is REFUSED


@pytest.mark.adr("0006", "10")
def test_only_ones_own_first_key_needs_no_strong_proof() -> None:
    needed = IdentityRefusal.STRONG_REQUIRED
    assert totp.may_enrol(None, ANA, SINGLE, at(0)) is None
    assert totp.may_enrol(KEY, ANA, SINGLE, at(0)) is needed
    assert totp.may_enrol(None, BOB, SINGLE, at(0)) is needed
    assert totp.may_enrol(KEY, ANA, MULTI, at(300_000)) is None
    assert totp.may_enrol(None, BOB, MULTI, at(0)) is None
    assert totp.may_enrol(KEY, ANA, MULTI, at(300_001)) is needed


def test_the_uri_says_what_an_authenticator_needs() -> None:
    uri = urlsplit(totp.otpauth_uri(SECRET, "home", "ana:x"))
    assert (uri.scheme, uri.netloc, uri.path) == ("otpauth", "totp", "/home:ana%3Ax")
    assert unquote(uri.path) == "/home:ana:x"
    asked = {name: values[0] for name, values in parse_qs(uri.query).items()}
    assert base64.b32decode(asked.pop("secret")) == SECRET
    assert asked == {
        "issuer": "qinglong-edge", "algorithm": "SHA1", "digits": "6", "period": "30",
    }  # fmt: skip
