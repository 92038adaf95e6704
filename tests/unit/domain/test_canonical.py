import hashlib
import hmac
import json

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.canonical import (
    Fields,
    Hash,
    Json,
    JsonObject,
    canonical_bytes,
    digest,
    hmac_sha256,
    ordered,
    parse_object,
    sha256_bytes,
    sha256_hex,
)
from qinglong_edge.domain.errors import UsageError

P1_DIGEST = "cad219f1877b9a449f09d31f9bda1262ea4f40c1ca28a980556d08d99cf52303"
RECEIPT: JsonObject = {
    "schemaVersion": 1,
    "dispatchId": "dsp-1",
    "approvalRequestId": "apr-1",
    "projectId": "home-lab",
    "actionType": "run.create",
    "actionDigest": P1_DIGEST,
    "executionAttempt": 1,
    "executionVersion": 2,
    "startedAtMs": 1_700_000_000_000,
    "idempotencyKey": "dsp-1",
    "outcome": "succeeded",
    "resultCode": "approved_run_created",
    "resourceType": "run",
    "resourceId": "01890000-0000-7000-8000-000000000001",
    "finishedAtMs": 1_700_000_000_005,
    "createdAtMs": 1_700_000_000_005,
}
FACT: JsonObject = {
    "dispatchId": "dsp-1",
    "projectId": "home-lab",
    "mutationId": "man-1",
    "resolvedByType": "user",
    "resolvedById": "usr_ana",
    "authenticationId": "mfa:77",
    "assurance": "hardware",
    "authenticatedAtMs": 1_700_000_100_000,
    "projectVersion": 1,
    "bindingVersion": 3,
    "authorizedAtMs": 1_700_000_160_000,
}


@pytest.mark.scenario(186)
@pytest.mark.adr("0003", "1")
@pytest.mark.parametrize(
    ("value", "size", "expected"),
    [
        (RECEIPT, 482, "8520c39628fde2d76382a32e51fa2911926f38146aff7922b12f7da00b155a2d"),
        (FACT, 269, "22ef2ca2370436b4d96ff91efe273e2c290ba0c567bbea44388c4f8d46408455"),
    ],
)
def test_the_contract_vectors_hold(value: JsonObject, size: int, expected: str) -> None:
    assert len(canonical_bytes(value)) == size
    assert digest(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, "{}"),
        ({"b": 1, "a": [True, False, None, -5, "x"]}, '{"b":1,"a":[true,false,null,-5,"x"]}'),
        ({"名": "夜 é 𝄞"}, '{"名":"夜 é 𝄞"}'),
        ({"t": '"\\/\n\t\x00\x1f\x7f\u2028'}, '{"t":"\\"\\\\/\\n\\t\\u0000\\u001f\x7f\u2028"}'),
        ({"n": 2**53 - 1, "m": -(2**53 - 1)}, '{"n":9007199254740991,"m":-9007199254740991}'),
        ([], "[]"),
    ],
)
def test_canonical_bytes_are_compact_utf_8_in_the_given_order(value: Json, expected: str) -> None:
    assert canonical_bytes(value) == expected.encode()


def test_members_are_ordered_by_their_utf_8_bytes_at_every_depth() -> None:
    value: Json = {"z": {"b": 1, "a": [{"d": 1, "c": 2}]}, "\U0001d11e": 1, "\uffff": 2, "A": 3}
    text = canonical_bytes(ordered(value)).decode()
    assert text == '{"A":3,"z":{"a":[{"c":2,"d":1}],"b":1},"\uffff":2,"\U0001d11e":1}'


def test_the_order_of_a_list_is_part_of_its_meaning() -> None:
    assert ordered([3, 1, {"b": 1, "a": 2}]) == [3, 1, {"a": 2, "b": 1}]
    assert ordered(("b", "a")) == ["b", "a"]
    assert ordered("ba") == "ba"


def test_a_domain_separates_digests_of_equal_bytes() -> None:
    value: Json = {"a": 1}
    assert digest(value) == hashlib.sha256(b'{"a":1}').hexdigest()
    assert digest(value, domain=b"x") == hashlib.sha256(b'x\0{"a":1}').hexdigest()
    assert len({digest(value), digest(value, domain=b""), digest(value, domain=b"x")}) == 3


@pytest.mark.parametrize("data", [b"", b"abc", b"x" * 1_000_003])
def test_sha_256_is_the_one_of_the_library(data: bytes) -> None:
    running = Hash()
    assert isinstance(running, Hash)
    for start in range(0, len(data), 4_096):
        running.update(data[start : start + 4_096])
    expected = hashlib.sha256(data)
    assert sha256_bytes(data) == expected.digest()
    assert sha256_hex(data) == running.hexdigest() == expected.hexdigest()


RFC_4231 = [
    (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (
        b"Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ),
    (
        b"\xaa" * 20,
        b"\xdd" * 50,
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
    ),
    (
        bytes(range(1, 26)),
        b"\xcd" * 50,
        "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
    ),
    (b"\x0c" * 20, b"Test With Truncation", "a3b6167473100ee06e0c796c2955552b"),
    (
        b"\xaa" * 131,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
    (
        b"\xaa" * 131,
        (
            b"This is a test using a larger than block-size key and a larger than block-size "
            b"data. The key needs to be hashed before being used by the HMAC algorithm."
        ),
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
    ),
]


@pytest.mark.parametrize(("key", "message", "expected"), RFC_4231)
def test_hmac_answers_the_vectors_of_rfc_4231(key: bytes, message: bytes, expected: str) -> None:
    assert hmac_sha256(key, message).hex().startswith(expected)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128])
def test_hmac_is_the_one_of_the_library_around_the_block_size(size: int) -> None:
    assert hmac_sha256(b"k" * size, b"m") == hmac.digest(b"k" * size, b"m", "sha256")


ACCEPTED: list[tuple[bytes, JsonObject]] = [
    (b"{}", {}),
    (b' \t\r\n{ "a" : 1 } \n', {"a": 1}),
    (b'{"a":9007199254740991,"b":-9007199254740991}', {"a": 2**53 - 1, "b": -(2**53 - 1)}),
    (b'{"a":"\\ud834\\udd1e","b":"\\u0000"}', {"a": "𝄞", "b": "\x00"}),
    ('{"夜":"\ufeff"}'.encode(), {"夜": "\ufeff"}),
    (b'{"a":{"x":1},"b":{"x":1}}', {"a": {"x": 1}, "b": {"x": 1}}),
    (b'{"a":[true,false,null]}', {"a": [True, False, None]}),
]


@pytest.mark.parametrize(("data", "value"), ACCEPTED)
def test_one_strict_object_is_read(data: bytes, value: JsonObject) -> None:
    assert parse_object(data, "line") == value


def test_minus_zero_is_the_integer_zero_and_has_its_digest() -> None:
    value = parse_object(b'{"a":-0}', "line")
    assert canonical_bytes(value) == b'{"a":0}'


REFUSED: list[bytes] = [
    b"", b" ", b"null", b"true", b"1", b'"a"', b"[]", b"[{}]", b"{", b"}", b"{}}", b"{} {}",
    b'{"a":1}x', b'{"a":1,}', b"{a:1}", b"{'a':1}", b'{"a"}', b'{"a":}', b"{}//", b"{}\x00",
    b'{"a":1,"a":1}', b'{"a":1,"\\u0061":2}', b'{"x":{"a":1,"b":2,"a":3}}', b'{"x":[{"":1,"":2}]}',
    b'{"a":1.0}', b'{"a":0.5}', b'{"a":1e3}', b'{"a":1E3}', b'{"a":-0.0}', b'{"a":1e400}',
    b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":nan}', b'{"a":+1}', b'{"a":01}',
    b'{"a":0x1}', b'{"a":-}', b'{"a":9007199254740992}', b'{"a":-9007199254740992}',
    b'{"a":10000000000000000}', b'{"a":99999999999999999}', b'{"a":' + b"9" * 20_000 + b"}",
    b'{"a":-' + b"9" * 20_000 + b"}", b'{"a":1' + b"0" * 5_000 + b"}",
    b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}', b'{"\\ud800":1}', b'{"x":[{"\\udfff":1}]}',
    b'{"a":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}", b'{"a":"\xff"}', b'\xff\xfe{\x00}\x00',
    '{"a":1}'.encode("utf-16"), b'{"a":"\xc0\x80"}', b'{"a":"\n"}', b'{"a":"\x00"}', b'{"a":"\\x"}',
]  # fmt: skip


@pytest.mark.adr("0003", "3")
@pytest.mark.parametrize("data", REFUSED, ids=range(len(REFUSED)))
def test_anything_else_is_refused_as_malformed(data: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        parse_object(data, "line")
    assert caught.value.code == "malformed_json"
    assert caught.value.message.startswith("line: ")


def nested(levels: int, innermost: bytes) -> bytes:
    """Return an object in which `innermost` stands on that level; the object itself is level 1."""
    return b'{"a":' + b"[" * (levels - 2) + innermost + b"]" * (levels - 2) + b"}"


@pytest.mark.parametrize("innermost", [b"1", b'"x"', b"null", b"[]", b"{}"])
def test_sixteen_levels_are_the_deepest(innermost: bytes) -> None:
    assert parse_object(nested(limits.JSON_DEPTH_MAX, innermost), "line")
    with pytest.raises(UsageError) as caught:
        parse_object(nested(limits.JSON_DEPTH_MAX + 1, innermost), "line")
    assert caught.value.code == "malformed_json"


BOMBS = [
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'{"a":' + b"[" * 100_000,
    b"[" * 100_000,
    b'{"a":' + b"[" * 600 + b"]" * 600 + b"}",
]


@pytest.mark.adr("0003", "3")
@pytest.mark.parametrize("data", BOMBS, ids=range(len(BOMBS)))
def test_a_depth_bomb_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        parse_object(data, "line", most=2_000_000)
    assert caught.value.code == "malformed_json"


@pytest.mark.adr("0003", "3")
def test_the_size_is_looked_at_before_the_shape() -> None:
    fitting = b'{"a":"' + b"x" * (limits.PLAN_BYTES_MAX - 8) + b'"}'
    assert len(fitting) == limits.PLAN_BYTES_MAX
    assert parse_object(fitting, "line")
    for data in (fitting + b" ", b"\xff" * (limits.PLAN_BYTES_MAX + 1)):
        with pytest.raises(UsageError) as caught:
            parse_object(data, "line")
        assert caught.value.code == "too_large"
        assert caught.value.details == {"bytes_max": limits.PLAN_BYTES_MAX}


def test_the_size_limit_may_be_named() -> None:
    assert parse_object(b"{}", "line", most=2) == {}
    with pytest.raises(UsageError):
        parse_object(b"{} ", "line", most=2)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b'{"a":1.5}', "only integers are numbers here"),
        (b'{"a":1,"a":1}', "names a member twice"),
        (b'{"a":' + b"9" * 20_000 + b"}", "an integer is beyond 2^53 - 1"),
        (b'{"a":\n}', "not JSON at line 2, column 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "not UTF-8 text"),
    ],
    ids=["float", "twice", "integer", "syntax", "depth", "bytes"],
)
def test_a_refusal_says_what_is_wrong(data: bytes, fault: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_object(data, "line", most=200_000)
    assert caught.value.message == f"line: {fault}"


@pytest.mark.parametrize("data", [b'{"hunter2":1.5}', b'{"hunter2', b'{"a":"hunter2\\ud800"}'])
def test_a_refusal_never_repeats_what_it_read(data: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        parse_object(data, "line")
    assert "hunter2" not in caught.value.message


def test_what_was_read_has_the_bytes_that_the_library_writes() -> None:
    data = json.dumps({"a": "夜", "b": [1, {"c": None}]}, ensure_ascii=True).encode()
    assert canonical_bytes(parse_object(data, "line")) == '{"a":"夜","b":[1,{"c":null}]}'.encode()


def test_fields_give_each_member_once() -> None:
    fields = Fields({"a": 1, "b": None, "c": "x"}, "record")
    assert fields.take("a") == 1
    assert fields.take("b") is None
    assert fields.maybe("c") == "x"
    assert fields.maybe("c", "none left") == "none left"
    assert fields.maybe("d") is None
    fields.done()
    with pytest.raises(UsageError):
        fields.take("a")


@pytest.mark.scenario(5)
@pytest.mark.parametrize("value", [None, [], (), "{}", 1, True, [("a", 1)]])
def test_only_an_object_has_fields(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        Fields(value, "record")
    assert caught.value.details == {"field": "record"}


@pytest.mark.scenario(5)
def test_a_missing_member_is_refused_by_name() -> None:
    with pytest.raises(UsageError) as caught:
        Fields({}, "record").take("a")
    assert caught.value.details == {"field": "record.a"}


@pytest.mark.scenario(5)
def test_an_optional_member_must_not_be_null() -> None:
    with pytest.raises(UsageError) as caught:
        Fields({"a": None}, "record").maybe("a", 1)
    assert caught.value.details == {"field": "record.a"}


@pytest.mark.scenario(4, 5, 126)
def test_a_member_that_nobody_took_is_refused() -> None:
    fields = Fields({"a": 1, "z": 2}, "record")
    fields.take("a")
    with pytest.raises(UsageError) as caught:
        fields.done()
    assert caught.value.details == {"field": "record"}


@pytest.mark.parametrize(
    ("name", "shown"),
    [("z", " z"), ("x" * 99, " " + "x" * 63), ("é", ""), ("a b", ""), ("a\n", ""), ("", "")],
)
def test_an_unknown_member_is_named_where_its_name_is_a_word(name: str, shown: str) -> None:
    with pytest.raises(UsageError) as caught:
        Fields({name: 1}, "record").done()
    assert caught.value.message == f"record: unknown member{shown}"


def test_reading_fields_leaves_the_object_alone() -> None:
    value = {"a": 1}
    Fields(value, "record").take("a")
    assert value == {"a": 1}
