"""Small changes of a function: each alters, negates or drops one node of its syntax tree."""

import ast
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_OPPOSITES: tuple[tuple[type[Any], type[Any]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn)),
    *((ast.Is, ast.IsNot), (ast.Add, ast.Sub), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or)),
)
_SWAPS: dict[type[Any], type[Any]] = {
    **dict(_OPPOSITES),
    **{other: one for one, other in _OPPOSITES},
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}


def _setter(node: ast.AST, field: str, value: object) -> Callable[[], None]:
    return partial(setattr, node, field, value)


class Mutant(NamedTuple):
    """A changed function."""

    name: str
    """What was changed in which function, wherever in its file that is."""
    code: CodeType


class _Change(NamedTuple):
    what: str
    apply: Callable[[], object]


def mutants(function: Callable[..., Any]) -> Iterator[Mutant]:
    """Yields all mutants of a function, in the order of its syntax tree."""
    assert isinstance(function, FunctionType)
    module = inspect.getmodule(function)
    assert module is not None
    source = inspect.getsource(module)
    name, file = function.__qualname__, function.__code__.co_filename
    for index in range(len(_changes(_find(ast.parse(source), name)))):
        tree = ast.parse(source)
        change = _changes(_find(tree, name))[index]
        change.apply()
        compiled = compile(ast.fix_missing_locations(tree), file, "exec")
        yield Mutant(f"{name}: {change.what}", _find_code(compiled, name))


def _find(tree: ast.AST, name: str) -> ast.FunctionDef:
    for part in name.split("."):
        (tree,) = [
            node for node in ast.iter_child_nodes(tree) if getattr(node, "name", None) == part
        ]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _find_code(code: CodeType, name: str) -> CodeType:
    for part in name.split("."):
        (code,) = [
            each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == part
        ]
    return code


def _changes(function: ast.FunctionDef) -> list[_Change]:
    found: list[_Change] = []
    nodes = (node for each in function.body for node in ast.walk(each))
    for node in (function, *nodes):
        for kind in (_swap, _decide, _add_one, _drop):
            found += kind(node)
    return found


def _swap(node: ast.AST) -> Iterator[_Change]:
    """Swaps an operator for another."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            if other := _SWAPS.get(type(operator)):
                what = f"{ast.unparse(node)} -> {other.__name__}"
                yield _Change(what, partial(node.ops.__setitem__, index, other()))
    elif other := _SWAPS.get(type(getattr(node, "op", None))):
        yield _Change(f"{ast.unparse(node)} -> {other.__name__}", _setter(node, "op", other()))


def _decide(node: ast.AST) -> Iterator[_Change]:
    """Takes a branch always, or never."""
    if isinstance(node, ast.If | ast.IfExp):
        for value in (True, False):
            what = f"if {ast.unparse(node.test)} -> {value}"
            yield _Change(what, _setter(node, "test", ast.Constant(value)))


def _add_one(node: ast.AST) -> Iterator[_Change]:
    """Adds one to each number."""
    for _, child in ast.iter_fields(node):
        for each in child if isinstance(child, list) else (child,):
            if isinstance(each, ast.Constant) and type(each.value) is int:
                what = f"{ast.unparse(node)}: {each.value} -> {each.value + 1}"
                yield _Change(what, _setter(each, "value", each.value + 1))


def _drop(node: ast.AST) -> Iterator[_Change]:
    """Leaves out each call, and each assignment to what outlives the function."""
    for _, statements in ast.iter_fields(node):
        for index, each in enumerate(statements if isinstance(statements, list) else []):
            if _lasts(each):
                what = f"{ast.unparse(each)} -> dropped"
                yield _Change(what, partial(statements.__setitem__, index, ast.Pass()))


def _lasts(statement: ast.AST) -> bool:
    if isinstance(statement, ast.Assign | ast.AugAssign):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        return any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
