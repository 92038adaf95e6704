"""What is not in the manifest is not reachable; one that cannot be believed is damage."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.actions.manifest import (
    EMPTY,
    MANIFEST_BYTES_MAX,
    Manifest,
    check_manifest,
    manifest_bytes,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import DamagedError, UnavailableError, UsageError

SHELL = Manifest(("shell.exec",))
FULL = Manifest(
    ("http.request", "shell.exec"),
    {
        "http.request": 1,
        "run.create": limits.HANDLER_DEADLINE_MS_MAX,
    },
)
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def body(**changes: Any) -> bytes:
    return json.dumps({"schema_version": 1, "enabled": [], **changes}).encode()


@pytest.mark.parametrize("manifest", [EMPTY, SHELL, FULL])
def test_what_is_written_is_read(tmp_path: Path, manifest: Manifest) -> None:
    write_manifest(str(tmp_path), manifest)
    assert read_manifest(str(tmp_path)) == manifest
    assert (tmp_path / "manifest.json").stat().st_mode & 0o7777 == 0o600
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_a_missing_manifest_enables_nothing(tmp_path: Path) -> None:
    assert read_manifest(str(tmp_path)) == EMPTY
    assert EMPTY.enabled == ()


def test_the_file_says_what_a_person_would_write() -> None:
    assert json.loads(manifest_bytes(FULL)) == {
        "schema_version": 1,
        "enabled": ["http.request", "shell.exec"],
        "deadlines_ms": {
            "http.request": {"inspect": 1},
            "run.create": {"inspect": limits.HANDLER_DEADLINE_MS_MAX},
        },
    }
    assert json.loads(manifest_bytes(SHELL)) == {"schema_version": 1, "enabled": ["shell.exec"]}


def test_the_order_of_types_does_not_matter() -> None:
    swapped = Manifest(
        ("shell.exec", "http.request"), dict(sorted(FULL.inspect_ms.items(), reverse=True))
    )
    assert check_manifest(swapped) == FULL
    assert manifest_bytes(swapped) == manifest_bytes(FULL)


def test_deadlines_have_a_default() -> None:
    assert FULL.inspect_deadline_ms("http.request") == 1
    assert FULL.inspect_deadline_ms("run.create") == limits.HANDLER_DEADLINE_MS_MAX
    assert FULL.inspect_deadline_ms("shell.exec") == limits.HANDLER_DEADLINE_MS_DEFAULT
    assert EMPTY.inspect_deadline_ms("shell.exec") == limits.HANDLER_DEADLINE_MS_DEFAULT


def test_a_type_may_be_named_without_a_deadline() -> None:
    read = parse_manifest(body(deadlines_ms={"shell.exec": {}, "run.create": {"inspect": 2}}))
    assert read == Manifest((), {"run.create": 2})


MALFORMED = [
    b"",
    b"[]",
    b"{}",
    b'{"schema_version":1,"enabled":[]} x',
    b'{"schema_version":1,"schema_version":1,"enabled":[]}',
    body(schema_version=2),
    body(schema_version=True),
    body(schema_version="1"),
    body(enabled=None),
    body(enabled={}),
    body(enabled="shell.exec"),
    body(enabled=["shell.exec", "shell.exec"]),
    body(enabled=["shell.execute"]),
    body(enabled=[1]),
    body(enabled=[["shell.exec"]]),
    body(extra=1),
    body(deadlines_ms=None),
    body(deadlines_ms=[]),
    body(deadlines_ms={"nothing": {}}),
    body(deadlines_ms={"shell.exec": 5}),
    body(deadlines_ms={"shell.exec": {"inspect": 0}}),
    body(deadlines_ms={"shell.exec": {"inspect": True}}),
    body(deadlines_ms={"shell.exec": {"inspect": 1.0}}),
    body(deadlines_ms={"shell.exec": {"inspect": None}}),
    body(deadlines_ms={"shell.exec": {"inspect": limits.HANDLER_DEADLINE_MS_MAX + 1}}),
    body(deadlines_ms={"shell.exec": {"execute": 1}}),
    body(deadlines_ms={"shell.exec": {"other": 1}}),
    body() + b" " * MANIFEST_BYTES_MAX,
]


@pytest.mark.parametrize("data", MALFORMED)
def test_any_other_shape_is_refused_and_on_disk_it_is_damage(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UsageError):
        parse_manifest(data)
    path = tmp_path / "manifest.json"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(DamagedError) as caught:
        read_manifest(str(tmp_path))
    assert caught.value.code == "manifest_damaged"


def test_a_manifest_of_exactly_the_size_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(body().ljust(MANIFEST_BYTES_MAX))
    path.chmod(0o600)
    assert read_manifest(str(tmp_path)) == EMPTY


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_manifest_that_others_may_write_is_damage(tmp_path: Path, mode: int) -> None:
    write_manifest(str(tmp_path), SHELL)
    (tmp_path / "manifest.json").chmod(mode)
    with pytest.raises(DamagedError) as caught:
        read_manifest(str(tmp_path))
    assert caught.value.code == "manifest_damaged"


@ROOT_ONLY
def test_a_foreign_manifest_is_damage(tmp_path: Path) -> None:
    write_manifest(str(tmp_path), SHELL)
    os.chown(tmp_path / "manifest.json", 12_345, 12_345)
    with pytest.raises(DamagedError):
        read_manifest(str(tmp_path))


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_what_is_no_regular_file_is_damage(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "manifest.json"
    if kind == "symlink":
        (tmp_path / "other").write_bytes(body())
        (tmp_path / "other").chmod(0o600)
        path.symlink_to(tmp_path / "other")
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.mkdir(0o700)
    with pytest.raises(DamagedError):
        read_manifest(str(tmp_path))


def test_a_state_that_is_no_directory_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnavailableError):
        read_manifest(str(tmp_path / "file"))
    with pytest.raises(UnavailableError):
        write_manifest(str(tmp_path / "file"), SHELL)


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest(("nothing",)),
        Manifest(("shell.exec", "shell.exec")),
        Manifest((), {"shell.exec": 0}),
    ],
)
def test_what_is_no_manifest_is_not_written(tmp_path: Path, manifest: Manifest) -> None:
    write_manifest(str(tmp_path), SHELL)
    with pytest.raises(UsageError):
        write_manifest(str(tmp_path), manifest)
    assert read_manifest(str(tmp_path)) == SHELL


def test_what_a_crash_left_does_not_stop_the_next_write(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"kept")
    (tmp_path / ".manifest.json.new").symlink_to(tmp_path / "elsewhere")
    write_manifest(str(tmp_path), SHELL)
    assert read_manifest(str(tmp_path)) == SHELL
    assert (tmp_path / "elsewhere").read_bytes() == b"kept"
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "manifest.json"]


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_write_that_fails_leaves_the_old_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "no space")

    write_manifest(str(tmp_path), SHELL)
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(UnavailableError) as caught:
            write_manifest(str(tmp_path), FULL)
    assert caught.value.code == "manifest_not_written"
    assert read_manifest(str(tmp_path)) == SHELL
    assert os.listdir(tmp_path) == ["manifest.json"]
    assert os.listdir("/proc/self/fd") == before
