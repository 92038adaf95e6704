"""Say which action types may be reached on this machine: STATE/manifest.json.

What is not listed there is not reachable, and no file means that nothing is. The file is

    {"schema_version": 1, "enabled": [TYPE...],
     "deadlines_ms": {TYPE: {"inspect": N?}}?}

in exactly that shape, at most 16 KiB, private to the owner of STATE. A file that cannot be believed
is an error, never an empty manifest.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.action import ACTION_TYPES
from qinglong_edge.domain.canonical import Fields, Json, canonical_bytes, parse_object
from qinglong_edge.domain.errors import DamagedError, UnavailableError, UsageError
from qinglong_edge.executor import private_file

MANIFEST_NAME = "manifest.json"
MANIFEST_BYTES_MAX = 16_384
MANIFEST_SCHEMA_VERSION = 1

_NEW_NAME = ".manifest.json.new"


class Manifest(NamedTuple):
    """Hold the enabled types, sorted, and the deadlines of `inspect` that are not the default.

    How long `execute` may take follows from the plan: a manifest has no word in it.
    """

    enabled: tuple[str, ...] = ()
    inspect_ms: Mapping[str, int] = {}

    def inspect_deadline_ms(self, action_type: str) -> int:
        """Return how long `inspect` of a type may take."""
        return self.inspect_ms.get(action_type, limits.HANDLER_DEADLINE_MS_DEFAULT)


EMPTY = Manifest()


def check_manifest(manifest: Manifest) -> Manifest:
    """Return the manifest sorted and proven; raises `UsageError`."""
    return parse_manifest(manifest_bytes(manifest))


def parse_manifest(data: bytes) -> Manifest:
    """Read the exact shape; raises `UsageError`."""
    fields = Fields(parse_object(data, "manifest", most=MANIFEST_BYTES_MAX), "manifest")
    version = fields.take("schema_version")
    ids.check_int(version, "manifest.schema_version", least=1, most=MANIFEST_SCHEMA_VERSION)
    enabled = fields.take("enabled")
    deadlines = fields.maybe("deadlines_ms", {})
    fields.done()
    if not isinstance(enabled, list):
        raise ids.invalid("manifest.enabled", "must be a list")
    if not isinstance(deadlines, Mapping):
        raise ids.invalid("manifest.deadlines_ms", "must be an object")
    types = _check_types(enabled, "manifest.enabled")
    named = _check_types(deadlines, "manifest.deadlines_ms")
    read = {name: _parse_inspect(deadlines[name]) for name in named}
    return Manifest(types, {name: length for name, length in read.items() if length is not None})


def _check_types(values: Iterable[Json], field: str) -> tuple[str, ...]:
    names = []
    for value in values:
        if not isinstance(value, str) or value not in ACTION_TYPES:
            raise ids.invalid(field, "names an unknown action type")
        names.append(value)
    if len(set(names)) != len(names):
        raise ids.invalid(field, "names a type twice")
    return tuple(sorted(names))


def _parse_inspect(value: Json) -> int | None:
    fields = Fields(value, "manifest.deadlines_ms")
    inspect = fields.maybe("inspect")
    fields.done()
    if inspect is None:
        return None
    most = limits.HANDLER_DEADLINE_MS_MAX
    return ids.check_int(inspect, "manifest.deadlines_ms", least=1, most=most)


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the bytes of the file: the same manifest gives the same bytes."""
    body: dict[str, Json] = {
        "schema_version": MANIFEST_SCHEMA_VERSION,
        "enabled": sorted(manifest.enabled),
    }
    if manifest.inspect_ms:
        body["deadlines_ms"] = {
            name: {"inspect": length} for name, length in sorted(manifest.inspect_ms.items())
        }
    return canonical_bytes(body) + b"\n"


def read_manifest(state_dir: str) -> Manifest:
    """Return the manifest of a state directory; a missing file enables nothing.

    Raises `DamagedError` (`manifest_damaged`) for a link, a foreign or widely writable file, or
    any other shape; `UnavailableError` (`manifest_unreadable`) where the machine cannot read it.
    """
    path = os.path.join(state_dir, MANIFEST_NAME)
    try:
        data, _ = private_file.read(path, _check_private, MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        return EMPTY
    except OSError as error:
        raise UnavailableError("manifest_unreadable", "the manifest cannot be read") from error
    try:
        return parse_manifest(data)
    except UsageError as error:
        raise DamagedError("manifest_damaged", f"the manifest: {error.message}") from error


def _check_private(found: os.stat_result) -> None:
    wide = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or wide:
        raise DamagedError(
            "manifest_damaged", "the manifest is not a regular file that only its owner may write"
        )


def write_manifest(state_dir: str, manifest: Manifest) -> None:
    """Replace the manifest: after a crash either the old file or the new one is there.

    The caller holds the lock of the state. Raises `UsageError` for what is no manifest, and
    `UnavailableError` (`manifest_not_written`): the old file stands, or, where only the last sync
    failed, the new one may; writing the same again settles it.
    """
    data = manifest_bytes(check_manifest(manifest))
    try:
        directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(FileNotFoundError):  # what a crash left
                os.unlink(_NEW_NAME, dir_fd=directory)
            private_file.replace(_NEW_NAME, MANIFEST_NAME, data, dir_fd=directory, sync=True)
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise UnavailableError("manifest_not_written", "the manifest cannot be written") from error
