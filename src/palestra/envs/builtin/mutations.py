"""Bugs made on purpose: small changes to a right function, by kind.

The world ``code_repair`` draws its bugs here and keeps those that a test catches. The surprising choice: a
change is cut into the text where its node stands, so the rest of the function keeps its form and a bug is
never to be known by how it is written.
"""

import ast
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache
from typing import NamedTuple

KINDS = (
    "comparison",
    "constant",
    "arithmetic",
    "off_by_one",
    "condition",
    "result",
    "arguments",
    "missing_case",
)
_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
}
_Change = tuple[str, ast.AST, str]
"""Kind, the node whose text is replaced, and by what."""


class Mutant(NamedTuple):
    """A function with a bug."""

    kind: str
    source: str


@cache
def mutants(source: str) -> tuple[Mutant, ...]:
    """Every bug of these kinds that fits into ``source``, each once, in the order of its nodes."""
    tree = ast.parse(source)
    found: dict[str, Mutant] = {}
    for node in ast.walk(tree):
        for kind, place, text in _changes(node, tree):
            mutant = Mutant(kind, _cut_in(source, place, text))
            if mutant.source != source:
                found.setdefault(mutant.source, mutant)
    return tuple(found.values())


def _changes(node: ast.AST, tree: ast.Module) -> Iterator[_Change]:
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in _COMPARISONS:
            yield "comparison", node, _with(node, ops=[_COMPARISONS[type(operator)](), *node.ops[1:]])
        case ast.BinOp(op=operator, left=left, right=right):
            if type(operator) in _ARITHMETIC:
                yield "arithmetic", node, _with(node, op=_ARITHMETIC[type(operator)]())
            yield "arguments", node, _with(node, left=right, right=left)
        case ast.Constant(value=bool(value)):
            yield "constant", node, repr(not value)
        case ast.Constant(value=int(value)):
            yield from (("constant", node, str(value + step)) for step in (1, 2))
        case ast.Constant(value=str(value)):
            yield "constant", node, repr(value[1:] if len(value) > 1 else f"{value}-")
        case ast.Slice(lower=lower, upper=upper):
            yield from _off_by_one(bound for bound in (lower, upper) if bound)
        case ast.Subscript(slice=index, ctx=ast.Load()) if not isinstance(index, ast.Slice):
            yield from _off_by_one([index])
        case ast.Call(func=ast.Name(id="range"), args=arguments):
            yield from _off_by_one(arguments)
        case ast.BoolOp(op=operator):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "condition", node, _with(node, op=other)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield "condition", test, ast.unparse(_negated(test))
        case ast.FunctionDef(body=body) | ast.For(body=body) | ast.While(body=body) if len(body) > 1:
            cases = (each for each in body if isinstance(each, ast.If) and not each.orelse)
            yield from (("missing_case", each, "") for each in cases)
        case ast.Return(value=value) if value is not None:
            own = ast.unparse(value)
            yield from (("result", value, name) for name in sorted(_variables(tree)) if name != own)
    if isinstance(node, ast.Call) and len(node.args) > 1:
        first, second, *rest = node.args
        yield "arguments", node, _with(node, args=[second, first, *rest])


def _off_by_one(expressions: Iterable[ast.expr]) -> Iterator[_Change]:
    for each in expressions:
        match each:
            case ast.Constant(value=int(value)):
                yield from (("off_by_one", each, str(value + step)) for step in (-1, 1) if value + step >= 0)
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=ast.Constant(value=1)):
                yield "off_by_one", each, ast.unparse(left)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                yield "off_by_one", each, str(-value - 1)
            case _:
                yield from (("off_by_one", each, f"{ast.unparse(each)} {sign} 1") for sign in "+-")


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _variables(tree: ast.Module) -> set[str]:
    """Names of parameters and of what is assigned."""
    nodes = list(ast.walk(tree))
    stored = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return stored | {each.arg for each in nodes if isinstance(each, ast.arg)}


def _with(node: ast.expr, **changed: object) -> str:
    other = deepcopy(node)
    for name, value in changed.items():
        setattr(other, name, value)
    return ast.unparse(other)


def _cut_in(source: str, place: ast.AST, text: str) -> str:
    """``source`` with another text where a node stands in one line; without the line if there is none."""
    assert isinstance(place, ast.expr | ast.stmt)
    lines = source.splitlines(keepends=True)
    line = lines[place.lineno - 1]
    if not text:
        del lines[place.lineno - 1 : place.end_lineno]
    else:
        lines[place.lineno - 1] = line[: place.col_offset] + text + line[place.end_col_offset :]
    return "".join(lines)
