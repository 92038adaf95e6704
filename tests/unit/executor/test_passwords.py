import hashlib
import subprocess
import sys

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import DamagedError, UnavailableError, UsageError
from qinglong_edge.domain.identity import PasswordHash
from qinglong_edge.executor import passwords
from qinglong_edge.executor.passwords import COSTS, Costs, check_password, hash_password, verify
from tests.support.clock import FakeClocks
from tests.support.entropy import CounterEntropy

PASSWORD = "correct horse 夜"
SCRYPT = Costs(scrypt_log2=4)
PBKDF2 = Costs(scrypt_log2=None, pbkdf2_least=3, pbkdf2_most=5)
NO_OPENSSL = pytest.mark.parametrize("costs", [SCRYPT, PBKDF2], ids=["scrypt", "pbkdf2"])


class SlowClocks(FakeClocks):
    """Let a given time pass between any two looks."""

    def __init__(self, *lengths_ms: int) -> None:
        super().__init__()
        self._lengths = iter(lengths_ms)
        self._ms = 0
        self._began = False

    def monotonic_ms(self) -> int:
        if self._began:
            self._ms += next(self._lengths)
        self._began = not self._began
        return self._ms


def hashed(costs: Costs, password: str = PASSWORD) -> PasswordHash:
    return hash_password(password, CounterEntropy(), clocks=FakeClocks(), costs=costs)


@pytest.fixture
def without_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play an interpreter that was built without OpenSSL."""
    monkeypatch.delattr(hashlib, "scrypt", raising=False)
    monkeypatch.delattr(hashlib, "pbkdf2_hmac", raising=False)


@NO_OPENSSL
def test_a_password_is_known_again_and_nothing_else_is(costs: Costs) -> None:
    known = hashed(costs)
    assert verify(PASSWORD, known)
    for wrong in ("", "x", PASSWORD + " ", PASSWORD.upper(), "\n", "p" * 1024):
        assert not verify(wrong, known)


@NO_OPENSSL
def test_each_hash_has_its_own_salt(costs: Costs) -> None:
    entropy = CounterEntropy()
    one, two = (
        hash_password(PASSWORD, entropy, clocks=FakeClocks(), costs=costs) for _ in range(2)
    )
    assert one.scheme == two.scheme
    assert len(one.salt) == passwords.SALT_BYTES
    assert one.salt != two.salt
    assert one.value != two.value
    assert len(one.value) == passwords.VALUE_BYTES


def test_the_scheme_names_function_and_costs() -> None:
    assert hashed(SCRYPT).scheme == "scrypt:4:8:1"
    assert hashed(PBKDF2).scheme == "pbkdf2-sha256:5"
    assert Costs(14, 250, 20_000, 1_000_000) == COSTS


@pytest.mark.skipif(not hasattr(hashlib, "scrypt"), reason="this interpreter has no OpenSSL")
def test_scrypt_is_the_one_of_the_library() -> None:
    known = hashed(SCRYPT)
    secret = PASSWORD.encode()
    assert known.value == hashlib.scrypt(secret, salt=known.salt, n=16, r=8, p=1, dklen=32)


@pytest.mark.usefixtures("without_scrypt")
def test_without_openssl_passwords_are_stretched_all_the_same() -> None:
    known = hashed(SCRYPT._replace(pbkdf2_least=2, pbkdf2_most=4))
    assert known.scheme == "pbkdf2-sha256:4"
    assert verify(PASSWORD, known)
    assert not verify("another one", known)


@pytest.mark.usefixtures("without_scrypt")
def test_a_scheme_that_this_interpreter_lacks_is_unavailable() -> None:
    with pytest.raises(UnavailableError) as caught:
        verify(PASSWORD, PasswordHash("scrypt:4:8:1", b"s" * 16, b"v" * 32))
    assert caught.value.code == "password_scheme_unavailable"
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("password", "salt", "iterations", "value"),
    [
        # The vectors of RFC 7914, section 11, cut to one block.
        (b"passwd", b"salt", 1, "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc"),
        (
            b"Password",
            b"NaCl",
            80_000,
            "4ddcd8f60b98be21830cee5ef22701f9641a4418d04c0414aeff08876b34ab56",
        ),
    ],
)
def test_pbkdf2_gives_the_published_values(
    password: bytes, salt: bytes, iterations: int, value: str
) -> None:
    assert passwords.pbkdf2_sha256(password, salt, iterations).hex() == value


@pytest.mark.skipif(not hasattr(hashlib, "pbkdf2_hmac"), reason="this interpreter has no OpenSSL")
@pytest.mark.parametrize("length", [0, 1, 31, 32, 63, 64, 65, 128, 1_024])
@pytest.mark.parametrize("iterations", [1, 2, 1_000])
def test_pbkdf2_is_the_one_of_the_library(length: int, iterations: int) -> None:
    password, salt = bytes(range(256)) * 4, b"\0salt" * 4
    mine = passwords.pbkdf2_sha256(password[:length], salt, iterations)
    assert mine == hashlib.pbkdf2_hmac("sha256", password[:length], salt, iterations)


@pytest.mark.parametrize(
    ("lengths_ms", "iterations"),
    [
        ((100,), 5_000),
        ((62,), 8_000),
        ((32,), 9_000),
        ((31, 124), 8_000),
        ((16, 31, 250), 8_000),
        ((9_999,), 3_000),
        ((0, 0, 0, 0), 9_000),
    ],
)
def test_iterations_are_measured_to_a_quarter_of_a_second(
    lengths_ms: tuple[int, ...], iterations: int
) -> None:
    """A trial shorter than an eighth of that is doubled; the bounds hold whatever was measured."""
    costs = Costs(None, pbkdf2_least=3_000, pbkdf2_most=9_000)
    known = hash_password(PASSWORD, CounterEntropy(), clocks=SlowClocks(*lengths_ms), costs=costs)
    assert known.scheme == f"pbkdf2-sha256:{iterations}"
    assert verify(PASSWORD, known)


@pytest.mark.parametrize("password", ["12345678", "ä" * 512, " " * 8, "𝄞" * 8, "a" * 1_024])
def test_a_password_may_be_any_text_of_eight_characters(password: str) -> None:
    assert check_password(password) == password


@pytest.mark.parametrize(
    "password",
    [
        None,
        12345678,
        b"12345678",
        "",
        "1234567",
        "a" * (limits.PASSWORD_BYTES_MAX + 1),
        "ä" * 513,
        "1234567\n",
        "1234567\0",
        "1234567\x7f",
        "1234567\ud800",
    ],
)
def test_any_other_password_is_refused_without_repeating_it(password: object) -> None:
    with pytest.raises(UsageError) as caught:
        check_password(password)
    assert caught.value.details == {"field": "password"}
    assert not password or str(password) not in caught.value.message


@pytest.mark.parametrize("password", ["a" * 1_025, "\ud800"])
def test_what_no_password_can_be_is_not_stretched(password: str) -> None:
    with pytest.raises(UsageError):
        verify(password, hashed(PBKDF2))


@pytest.mark.parametrize(
    "scheme",
    [
        "",
        "md5",
        "scrypt",
        "scrypt:14:8",
        "scrypt:14:8:1 ",
        "scrypt:0:8:1",
        "scrypt:17:8:1",
        "scrypt:14:9:1",
        "scrypt:14:0:1",
        "scrypt:14:8:5",
        "scrypt:-1:8:1",
        "pbkdf2-sha256:0",
        "pbkdf2-sha256:1000001",
        "pbkdf2-sha256:10\n",
        "pbkdf2-sha1:10",
    ],
)
def test_a_scheme_that_nobody_wrote_is_damage(scheme: str) -> None:
    with pytest.raises(DamagedError) as caught:
        verify(PASSWORD, PasswordHash(scheme, b"s" * 16, b"v" * 32))
    assert caught.value.code == "password_damaged"


def test_scrypt_without_its_memory_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object, **__: object) -> bytes:
        raise MemoryError

    known = hashed(SCRYPT)
    monkeypatch.setattr(hashlib, "scrypt", out_of_memory)
    with pytest.raises(UnavailableError) as caught:
        verify(PASSWORD, known)
    assert caught.value.code == "out_of_memory"


@NO_OPENSSL
def test_a_decoy_is_as_dear_as_what_it_is_like_and_nobody_knows_it(costs: Costs) -> None:
    like = hashed(costs)
    decoy = passwords.decoy(like)
    assert decoy.scheme == like.scheme
    assert len(decoy.salt) == len(like.salt)
    assert not verify(PASSWORD, decoy)


def test_a_decoy_like_nothing_uses_the_scheme_of_this_interpreter() -> None:
    scheme = passwords.decoy(None).scheme
    assert scheme.partition(":")[0] == ("scrypt" if hasattr(hashlib, "scrypt") else "pbkdf2-sha256")


@pytest.mark.usefixtures("without_scrypt")
def test_a_decoy_without_openssl_is_not_scrypt() -> None:
    assert passwords.decoy(None).scheme == "pbkdf2-sha256:20000"


def test_importing_the_module_loads_no_openssl() -> None:
    code = (
        "import sys; import qinglong_edge.executor.passwords;"
        "print([name for name in ('hashlib', '_hashlib', 'hmac', '_ssl') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30
    )
    assert ran.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(hashlib, "scrypt"), reason="this interpreter has no OpenSSL")
def test_the_default_costs_work() -> None:
    known = hashed(COSTS)
    assert known.scheme == "scrypt:14:8:1"
    assert verify(PASSWORD, known)
