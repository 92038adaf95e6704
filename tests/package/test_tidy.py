"""The rules of the house that a linter does not know, each tried on a seeded fault."""

import ast
import re
from collections.abc import Callable, Iterator

import pytest

from tests.package.source_tree import (
    CODE,
    PACKAGE,
    ROOT,
    Source,
    imports,
    package_sources,
    python_sources,
    source,
    text_files,
)

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
PARAMETERS_MAX = 5
POSITIONAL_MAX = 4

BROAD_EXCEPT_ALLOWED = {
    "qinglong_edge/cli/main.py",  # every end of the program has an exit code
    "qinglong_edge/executor/invoke.py",  # whatever a handler does is an unknown outcome
    # A command's bug answers its caller and leaves the daemon alive.
    "qinglong_edge/control/server.py",
    "qinglong_edge/runtime/carrier.py",  # no cycle and no callback ends the schedule
    "qinglong_edge/runtime/poll_host.py",  # no source ends the service of the others
}
TRANSACTION = "qinglong_edge/storage/sqlite/transaction.py"
ASYNC_HOME = "qinglong_edge/runtime/asyncio_host.py"
BAD_WORD = re.compile(r"Manager|Service|Helper|Util|Mixin|Base$")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Faults = Iterator[tuple[int, str]]


def functions(found: Source) -> Iterator[Function]:
    return (node for node in ast.walk(found.tree) if isinstance(node, Function))


def long_file(found: Source) -> Faults:
    count = len(found.text.splitlines())
    if count > FILE_LINES_MAX:
        yield count, f"{count} lines"


def long_function(found: Source) -> Faults:
    for node in functions(found):
        count = (node.end_lineno or node.lineno) - node.lineno + 1
        if count > FUNCTION_LINES_MAX:
            yield node.lineno, f"{node.name} has {count} lines"


def many_parameters(found: Source) -> Faults:
    """Find functions of more than five parameters, or more than two of them by position."""
    methods = {
        id(member)
        for node in ast.walk(found.tree)
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, Function)
        and not any(ast.unparse(each) == "staticmethod" for each in member.decorator_list)
    }
    for node in functions(found):
        positional = len(node.args.posonlyargs) + len(node.args.args) - (id(node) in methods)
        if positional + len(node.args.kwonlyargs) > PARAMETERS_MAX:
            yield node.lineno, f"{node.name} has over {PARAMETERS_MAX} parameters"
        elif positional > POSITIONAL_MAX and not node.name.startswith("__"):
            yield node.lineno, f"{node.name} takes over {POSITIONAL_MAX} parameters by position"


def loose_import(found: Source) -> Faults:
    for node in ast.walk(found.tree):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "relative import"
            if any(alias.name == "*" for alias in node.names):
                yield node.lineno, "star import"


def assertion(found: Source) -> Faults:
    for node in ast.walk(found.tree):
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert vanishes under -O; raise InvariantBroken"


def broad_except(found: Source) -> Faults:
    """Find handlers that catch everything; one that always raises it again only cleans up."""
    for node in ast.walk(found.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield node.lineno, "bare except"
        elif found.path not in BROAD_EXCEPT_ALLOWED and ast.unparse(node.body[-1]) != "raise":
            caught = {each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)}
            if caught & {"Exception", "BaseException"}:
                yield node.lineno, "only main and the handler boundary catch everything"


def banned_name(found: Source) -> Faults:
    module = found.module.rpartition(".")[2]
    if BAD_WORD.search("".join(word.capitalize() for word in module.split("_"))):
        yield 1, f"module {module} says nothing about what it is"
    for node in ast.walk(found.tree):
        if isinstance(node, ast.ClassDef) and BAD_WORD.search(node.name):
            yield node.lineno, f"class {node.name} says nothing about what it is"


def docstrings(found: Source) -> set[int]:
    """Return the identities of the nodes that are docstrings."""
    owners = (node for node in ast.walk(found.tree) if hasattr(node, "body"))
    first = (node.body[0] for node in owners if isinstance(node.body, list) and node.body)
    return {id(node.value) for node in first if isinstance(node, ast.Expr)}


# A lone BEGIN is a statement when it is written the way SQL is written here, in capitals.
BEGIN_ALONE = re.compile(r"\s*BEGIN\s*;?\s*")
BEGIN_WORDS = re.compile(r"(?i)\bBEGIN\s+(IMMEDIATE|DEFERRED|EXCLUSIVE|CONCURRENT|TRANSACTION)\b")


def begins(text: str) -> bool:
    return bool(BEGIN_ALONE.fullmatch(text) or BEGIN_WORDS.search(text))


def begin_elsewhere(found: Source) -> Faults:
    if found.path == TRANSACTION:
        return
    papers = docstrings(found)
    for node in ast.walk(found.tree):
        if isinstance(node, ast.Constant) and id(node) not in papers:
            if isinstance(node.value, str) and begins(node.value):
                yield node.lineno, f"{TRANSACTION} holds every BEGIN"


def async_elsewhere(found: Source) -> Faults:
    if found.path == ASYNC_HOME:
        return
    kinds = ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await
    for node in ast.walk(found.tree):
        if isinstance(node, kinds):
            yield node.lineno, f"async lives in {ASYNC_HOME}"
    for line, module, _ in imports(found.tree):
        if module.partition(".")[0] == "asyncio":
            yield line, f"asyncio is imported by {ASYNC_HOME}"


def undocumented(found: Source) -> Faults:
    if ast.get_docstring(found.tree) is None:
        yield 1, "module without a docstring"
    for node in found.tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if ast.get_docstring(node) is None:
                yield node.lineno, f"{node.name} has no docstring"


Rule = Callable[[Source], Faults]
EVERYWHERE: tuple[Rule, ...] = (long_file, long_function, loose_import)
PROGRAM: tuple[Rule, ...] = (
    many_parameters,
    assertion,
    broad_except,
    banned_name,
    begin_elsewhere,
    async_elsewhere,
    undocumented,
)


def judge(rule: Rule, found: tuple[Source, ...]) -> list[str]:
    return [f"{each.path}:{line}: {fault}" for each in found for line, fault in rule(each)]


@pytest.mark.adr("0001", "3")
@pytest.mark.parametrize("rule", EVERYWHERE)
def test_all_code_obeys(rule: Rule) -> None:
    assert judge(rule, python_sources(*CODE)) == []


@pytest.mark.adr("0001", "3")
@pytest.mark.adr("0001", "4")
@pytest.mark.parametrize("rule", PROGRAM)
def test_the_program_obeys(rule: Rule) -> None:
    assert judge(rule, package_sources()) == []


def test_the_scripts_have_few_parameters() -> None:
    assert judge(many_parameters, python_sources("tools", "zipapp")) == []


STEP = "    step = 1\n"
SEEDED: list[tuple[Rule, str, str]] = [
    (long_file, "a.py", "x = 1\n" * 401),
    (long_function, "a.py", "def f():\n" + STEP * 50),
    (long_function, "a.py", "class A:\n    async def f(self):\n" + ("    " + STEP) * 50),
    (many_parameters, "a.py", "def f(a, b, *, c, d, e, g): ..."),
    (many_parameters, "a.py", "def f(a, b, c, d, e): ..."),
    (many_parameters, "a.py", "class A:\n    def f(self, a, b, c, d, e): ..."),
    (many_parameters, "a.py", "class A:\n    @staticmethod\n    def f(a, b, c, d, e): ..."),
    (loose_import, "a.py", "from . import b"),
    (loose_import, "a.py", "def f():\n    from ..b import c"),
    (loose_import, "a.py", "from b import *"),
    (assertion, "a.py", "def f(x):\n    assert x"),
    (broad_except, "a.py", "try:\n    f()\nexcept:\n    pass"),
    (broad_except, "a.py", "try:\n    f()\nexcept Exception:\n    pass"),
    (broad_except, "a.py", "try:\n    f()\nexcept (OSError, BaseException) as e:\n    pass"),
    (broad_except, "qinglong_edge/cli/main.py", "try:\n    f()\nexcept:\n    pass"),
    (broad_except, "a.py", "try:\n    f()\nexcept BaseException:\n    if x:\n        raise"),
    (broad_except, "a.py", "try:\n    f()\nexcept BaseException as e:\n    raise OSError from e"),
    (banned_name, "a.py", "class ActionManager: ..."),
    (banned_name, "a.py", "class StoreBase: ..."),
    (banned_name, "qinglong_edge/domain/util.py", ""),
    (banned_name, "qinglong_edge/domain/text_helpers.py", ""),
    (begin_elsewhere, "a.py", "db.execute('BEGIN')"),
    (begin_elsewhere, "a.py", "db.execute('begin immediate')"),
    (begin_elsewhere, "a.py", "db.execute(f'{x}; BEGIN EXCLUSIVE')"),
    (async_elsewhere, "a.py", "async def f(): ..."),
    (async_elsewhere, "a.py", "def f():\n    import asyncio.events"),
    (async_elsewhere, "a.py", "from asyncio import sleep"),
    (undocumented, "a.py", "x = 1"),
    (undocumented, "a.py", '"""Doc."""\ndef f(): ...'),
    (undocumented, "a.py", '"""Doc."""\nclass A:\n    x = 1'),
]
TOLERATED: list[tuple[Rule, str, str]] = [
    (long_file, "a.py", "x = 1\n" * 400),
    (long_function, "a.py", "def f():\n" + STEP * 49),
    (many_parameters, "a.py", "class A:\n    def f(self, a, b, *, c, d, e): ..."),
    (loose_import, "a.py", "from a.b import c"),
    (broad_except, "qinglong_edge/cli/main.py", "try:\n    f()\nexcept Exception:\n    pass"),
    (broad_except, "a.py", "try:\n    f()\nexcept OSError:\n    pass"),
    (broad_except, "a.py", "try:\n    f()\nexcept BaseException:\n    undo()\n    raise"),
    (banned_name, "qinglong_edge/storage/sqlite/database.py", "class Database: ..."),
    (begin_elsewhere, TRANSACTION, "db.execute('BEGIN IMMEDIATE')"),
    (begin_elsewhere, "a.py", '"""Why BEGIN IMMEDIATE is not here."""\nstep = "begin"'),
    (async_elsewhere, ASYNC_HOME, "import asyncio\nasync def f(): ..."),
    (undocumented, "a.py", '"""Doc."""\ndef _f(): ...'),
]


@pytest.mark.adr("0001", "3")
@pytest.mark.adr("0001", "4")
@pytest.mark.parametrize(("rule", "path", "text"), SEEDED)
def test_a_seeded_fault_is_found(rule: Rule, path: str, text: str) -> None:
    assert len(list(rule(source(path, text)))) == 1


@pytest.mark.parametrize(("rule", "path", "text"), TOLERATED)
def test_what_is_allowed_is_not_found(rule: Rule, path: str, text: str) -> None:
    assert list(rule(source(path, text))) == []


def test_every_rule_has_a_seeded_fault() -> None:
    assert {rule for rule, _, _ in SEEDED} == {*EVERYWHERE, *PROGRAM}


# Rules about text, whatever the language. The patterns are put together so that this file obeys.
HOMES = ("work", "root", "home", "farm")
MACHINE_PATH = re.compile(rf"(?<![\w.~*-])/({'|'.join(HOMES)})/")
BARE_MARK = re.compile("TO" + r"DO(?!\(#\d+\): \S)")
SQL_TIME = re.compile(
    r"CURRENT_(TIMESTAMP|TIME|DATE)|strftime|random\s*\(|\b(uni|juli)\w*\('now'", re.IGNORECASE
)
SQL_BEGIN = re.compile(r"\bBEGIN\s*(;|IMMEDIATE|DEFERRED|EXCLUSIVE|TRANSACTION)", re.IGNORECASE)


def bad_lines(pattern: re.Pattern[str], text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


@pytest.mark.parametrize("pattern", [MACHINE_PATH, BARE_MARK])
def test_no_text_file_holds(pattern: re.Pattern[str]) -> None:
    files = list(text_files())
    assert {"pyproject.toml", "tests/package/test_tidy.py"} <= {path for path, _ in files}
    assert [f"{path}:{line}" for path, text in files for line in bad_lines(pattern, text)] == []


@pytest.mark.parametrize("pattern", [SQL_TIME, SQL_BEGIN])
def test_no_statement_file_holds(pattern: re.Pattern[str]) -> None:
    files = [
        (path.relative_to(ROOT), re.sub(r"--.*", "", path.read_text(encoding="utf-8")))
        for path in sorted((ROOT / PACKAGE).rglob("*.sql"))
    ]
    assert files, "the program's SQL lives in .sql files"
    assert [f"{path}:{line}" for path, text in files for line in bad_lines(pattern, text)] == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        *((MACHINE_PATH, f"cd /{home}/x") for home in HOMES),
        (MACHINE_PATH, f"'/{HOMES[0]}/x'"),
        (BARE_MARK, "# TO" + "DO"),
        (BARE_MARK, "# TO" + "DO: later"),
        (SQL_TIME, "DEFAULT CURRENT_TIMESTAMP"),
        (SQL_TIME, "SELECT strftime('%s')"),
        (SQL_TIME, "SELECT unixepoch('now')"),
        (SQL_TIME, "ORDER BY random()"),
        (SQL_BEGIN, "BEGIN;"),
        (SQL_BEGIN, "begin immediate;"),
    ],
)
def test_a_seeded_text_is_found(pattern: re.Pattern[str], text: str) -> None:
    assert bad_lines(pattern, f"fine\n{text}\n") == [2]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (MACHINE_PATH, f"https://example.org/a/{HOMES[0]}/b"),
        (BARE_MARK, "# TO" + "DO(#12): read the mark once a page"),
        (SQL_BEGIN, "CREATE TRIGGER t BEFORE DELETE ON x BEGIN"),
    ],
)
def test_a_tolerated_text_is_not_found(pattern: re.Pattern[str], text: str) -> None:
    assert bad_lines(pattern, text) == []
