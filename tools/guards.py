"""List the guards of a module's functions, each with the edits of the syntax tree that remove it.

A guard is whatever may keep a function from going on or from saying yes:

- an `if`, an `elif`: removed, it never holds; the condition of a comprehension: it always does;
- an operand of `and` and `or`, a link of `a <= b < c`, a pair of `(a, b) == (c, d)`: removed alone;
- the boundary of a comparison: `<` becomes `<=`, and so on;
- `a if condition else b`: becomes `a`, then `b`;
- a call whose answer nobody takes, such as `check_ident(...)`: not made.

What runs when a module is imported is no guard here: no test could come before it.
"""

import ast
import types
from collections.abc import Iterator
from typing import NamedTuple

BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
WHAT_CHARS_MAX = 110

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Edit(NamedTuple):
    """Give one field of one node another value."""

    node: ast.AST
    field: str
    value: object


class Guard(NamedTuple):
    """Hold one guard; `name` stays the same while other lines of the module change."""

    name: str
    module: str
    function: str
    line: int
    edits: tuple[Edit, ...]


class Change(NamedTuple):
    """Hold what is removed, in words, and how."""

    line: int
    column: int
    what: str
    edits: tuple[Edit, ...]


def guards(module: str, tree: ast.Module) -> Iterator[Guard]:
    """Yield the guards of every function and method, in the order of the source."""
    seen: dict[str, int] = {}
    for function, node in _functions(tree.body):
        for change in _changes(node):
            said = f"{module}.{function}: {change.what}"
            seen[said] = count = seen.get(said, 0) + 1
            name = said if count == 1 else f"{said} ({count})"
            yield Guard(name, module, function, change.line, change.edits)


def remove(guard: Guard, tree: ast.Module, module: types.ModuleType) -> None:
    """Give the imported function the code it has without the guard; both stay changed."""
    for edit in guard.edits:
        setattr(edit.node, edit.field, edit.value)
    compiled = compile(ast.fix_missing_locations(tree), str(module.__file__), "exec")
    code = {each.co_qualname: each for each in _codes(compiled)}[guard.function]
    found: object = module
    for word in guard.function.split("."):
        found = vars(found)[word]
    if isinstance(found, property):
        found = found.fget
    function = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"{guard.function} is no function whose code can be replaced")
    function.__code__ = code


def _functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _changes(function: Function) -> list[Change]:
    assigned = {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    found: list[Change] = []
    for node in ast.walk(function):
        found += [*_branches(node), *_comparisons(node, assigned)]
    return sorted(found, key=lambda change: (change.line, change.column))


def _branches(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.If(test=test):
            yield _change(test, f"if {_text(test)}", Edit(node, "test", ast.Constant(value=False)))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            for value, kept in ((True, body), (False, orelse)):
                what = f"always {_text(kept)}, whatever {_text(test)}"
                yield _change(node, what, Edit(node, "test", ast.Constant(value=value)))
        case ast.BoolOp(op=op, values=values):
            neutral = ast.Constant(value=isinstance(op, ast.And))
            word = "and" if isinstance(op, ast.And) else "or"
            for operand in values:
                others = [neutral, *(each for each in values if each is not operand)]
                yield _change(operand, f"{word} {_text(operand)}", Edit(node, "values", others))
        case ast.comprehension(ifs=tests):
            for test in tests:
                others = [ast.Constant(value=True), *(each for each in tests if each is not test)]
                yield _change(test, f"only if {_text(test)}", Edit(node, "ifs", others))
        case ast.Expr(value=ast.Call() as call):
            # Kept for the compiler, so that the function still closes over the same names.
            never = ast.IfExp(ast.Constant(value=False), call, ast.Constant(value=None))
            yield _change(call, _text(call), Edit(node, "value", never))
        case _:
            return


def _comparisons(node: ast.AST, assigned: dict[str, ast.expr]) -> Iterator[Change]:
    if not isinstance(node, ast.Compare):
        return
    sides = [node.left, *node.comparators]
    for at, op in enumerate(node.ops):
        link = ast.Compare(sides[at], [op], [sides[at + 1]])
        if other := BOUNDARIES.get(type(op)):
            moved = [*node.ops[:at], other(), *node.ops[at + 1 :]]
            yield _change(node, f"boundary of {_text(link)}", Edit(node, "ops", moved))
        if at == 0 and len(node.ops) > 1:
            ops, others = Edit(node, "ops", node.ops[1:]), Edit(node, "comparators", sides[2:])
            yield _change(node, f"link {_text(link)}", Edit(node, "left", sides[1]), ops, others)
        elif at == len(node.ops) - 1 and at:
            ops, others = Edit(node, "ops", node.ops[:-1]), Edit(node, "comparators", sides[1:-1])
            yield _change(node, f"link {_text(link)}", ops, others)
    left, right = (
        assigned.get(side.id, side) if isinstance(side, ast.Name) else side for side in sides[:2]
    )
    if isinstance(left, ast.Tuple) and isinstance(right, ast.Tuple) and len(node.ops) == 1:
        for at, (one, two) in enumerate(zip(left.elts, right.elts, strict=False)):
            edits = (Edit(side, "elts", _without(side.elts, at)) for side in (left, right))
            yield _change(node, f"pair {_text(one)}, {_text(two)}", *edits)


def _without(elements: list[ast.expr], at: int) -> list[ast.expr]:
    return [*elements[:at], ast.Constant(value=None), *elements[at + 1 :]]


def _change(node: ast.expr, what: str, *edits: Edit) -> Change:
    short = what if len(what) <= WHAT_CHARS_MAX else what[: WHAT_CHARS_MAX - 3] + "..."
    return Change(node.lineno, node.col_offset, short, edits)


def _text(node: ast.AST) -> str:
    return ast.unparse(node)
