"""What a router must have installed: python3-light and python3-sqlite3, and nothing else.

OpenWrt cuts the standard library into packages. A module of these lists can be imported where only
those two are there; whatever is not listed needs a reason here, or a package there.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.package.source_tree import PACKAGE, Source, imports, package_sources, source

# Values in, values out: text, numbers, shapes. Nothing that reads a clock, a file or the system.
DOMAIN = frozenset(
    {
        "__future__", "base64", "binascii", "bisect", "collections", "dataclasses", "enum",
        "functools", "itertools", "json", "math", "operator", "re", "string", "struct", "types",
        "typing",
    }
)  # fmt: skip

# Measured to import with python3-light and python3-sqlite3 alone, on 3.11 and on 3.13. Not here,
# though it would import: hmac and secrets, which load OpenSSL where there is one (4 MB of memory).
ROUTER = DOMAIN | {
    "abc", "argparse", "atexit", "calendar", "contextlib", "csv", "datetime", "errno",
    "faulthandler", "fcntl", "gc", "getpass", "grp", "heapq", "importlib", "io", "mmap", "os",
    "pkgutil", "platform", "pwd", "queue", "resource", "select", "selectors", "shlex", "shutil",
    "signal", "socket", "sqlite3", "stat", "subprocess", "sys", "syslog", "tempfile", "termios",
    "textwrap", "threading", "time", "tomllib", "traceback", "warnings", "weakref", "zipimport",
    "zlib",
}  # fmt: skip

# The one file that may import what is not in the lists, and why it does no harm there.
EXCEPTIONS = {
    "_sha2": {"qinglong_edge/domain/canonical.py"},  # built in since 3.12; no OpenSSL
    "_sha256": {"qinglong_edge/domain/canonical.py"},  # the same up to 3.11
    "_sha1": {"qinglong_edge/domain/totp.py"},  # built in; the codes of RFC 6238 are made with it
    "hashlib": {
        "qinglong_edge/domain/canonical.py",  # where the built-in ones were left out
        "qinglong_edge/domain/totp.py",  # the same
        "qinglong_edge/executor/passwords.py",  # scrypt, when a password is set or checked
    },
    "asyncio": {"qinglong_edge/runtime/asyncio_host.py"},  # imported by embedding programs only
}
ABSENT = frozenset({"importlib.resources", "importlib.metadata"})


def beyond(found: Source) -> Iterator[tuple[int, str]]:
    """Yield line and module of each import that the lists do not allow."""
    domain = found.path.startswith(f"{PACKAGE}/domain/")
    allowed = DOMAIN if domain else ROUTER
    for line, module, names in imports(found.tree):
        top = module.partition(".")[0]
        if top == PACKAGE or found.path in EXCEPTIONS.get(top, ()):
            continue
        whole = {module, *(f"{module}.{name}" for name in names)}
        if top not in allowed or whole & ABSENT:
            yield line, module


@pytest.mark.adr("0001", "2")
def test_the_program_imports_what_a_router_has() -> None:
    found = package_sources()
    assert [f"{each.path}:{line}: {name}" for each in found for line, name in beyond(each)] == []


def test_no_exception_outlives_its_import() -> None:
    used = {
        (module.partition(".")[0], each.path)
        for each in package_sources()
        for _, module, _ in imports(each.tree)
    }
    there = {each.path for each in package_sources()}
    granted = {(name, path) for name, paths in EXCEPTIONS.items() for path in paths & there}
    assert granted - used == set()


@pytest.mark.adr("0001", "2")
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("qinglong_edge/domain/a.py", "import os"),
        ("qinglong_edge/domain/a.py", "from time import monotonic"),
        ("qinglong_edge/domain/a.py", "def f():\n    import hashlib"),
        ("qinglong_edge/cli/a.py", "import pathlib"),
        ("qinglong_edge/cli/a.py", "import hashlib"),
        ("qinglong_edge/cli/a.py", "import hmac"),
        ("qinglong_edge/cli/a.py", "from secrets import token_hex"),
        ("qinglong_edge/cli/a.py", "import urllib.parse"),
        ("qinglong_edge/cli/a.py", "from importlib import resources"),
        ("qinglong_edge/cli/a.py", "import importlib.resources"),
        ("qinglong_edge/cli/a.py", "from concurrent.futures import Future"),
        ("qinglong_edge/cli/a.py", "import psycopg"),
        ("qinglong_edge/cli/a.py", "importlib.import_module('logging')"),
        ("qinglong_edge/runtime/poll_host.py", "import asyncio"),
    ],
)
def test_an_import_over_the_budget_is_found(path: str, text: str) -> None:
    assert len(list(beyond(source(path, text)))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("qinglong_edge/domain/a.py", "from collections.abc import Mapping"),
        ("qinglong_edge/domain/canonical.py", "from _sha2 import sha256"),
        ("qinglong_edge/cli/a.py", "import os.path\nfrom importlib import import_module"),
        ("qinglong_edge/storage/a.py", "import sqlite3"),
        ("qinglong_edge/runtime/asyncio_host.py", "import asyncio"),
    ],
)
def test_an_import_within_the_budget_is_not_found(path: str, text: str) -> None:
    assert list(beyond(source(path, text))) == []


def test_no_string_names_a_character_by_its_unicode_name() -> None:
    """Such an escape asks for `unicodedata` when it is compiled, which a router does not have."""
    escape = "\\N" + "{"
    assert [each.path for each in package_sources() if escape in each.text] == []


def test_every_listed_module_exists_here() -> None:
    tree = ast.parse("\n".join(f"import {name}" for name in sorted(ROUTER)))
    exec(compile(tree, "the budget", "exec"), {})
