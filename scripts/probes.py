"""Probes in the planner's modules: which way each condition, comparison, minimum and difference came out.

`install` makes later imports put them in. A branch that both a fault and the right code take says nothing, so
comparisons also tell equal from unequal, and sums whether the term that a fault might drop is nothing.
"""

import ast
import builtins
import operator
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

PRODUCT = ("planner/pipeplan/", "formulations/pipeplan_formulations/")
COMPARED = {"Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge}
COMPARED |= {"Eq": operator.eq, "NotEq": operator.ne}
OUTCOMES = 4
places: list[tuple[str, int]] = []
"""File and line of each probe."""
seen: set[int] = set()
"""Outcomes since the last `clear`: the probe's number times `OUTCOMES`, and which one."""


def _note(place: int, outcome: int) -> None:
    seen.add(place * OUTCOMES + outcome)


def _truth(place: int, value: Any) -> Any:
    """Note whether a condition holds."""
    try:
        _note(place, bool(value))
    except Exception:  # arrays and expressions of solvers are neither
        _note(place, 2)
    return value


def _compare(place: int, name: str, left: Any, right: Any) -> Any:
    """Compare, and note what comes out and whether both are equal."""
    result = COMPARED[name](left, right)
    if type(left) in (int, float) and type(right) in (int, float):
        _note(place, int(left > right) + 2 * (left == right))
    elif name in ("Eq", "NotEq"):
        _truth(place, result)
    return result


def _term(place: int, value: Any) -> Any:
    """Note whether what is added or subtracted is nothing."""
    if type(value) in (int, float):
        _note(place, bool(value))
    return value


def _least(place: int, function: Any, *values: Any) -> Any:
    """Call ``min`` or ``max`` and note whether the first of several is chosen, alone or not."""
    result = function(*values)
    if type(result) in (int, float):
        _note(place, 0 if values[0] != result else 1 + (values.count(result) > 1))
    return result


class _Probes(ast.NodeTransformer):
    """Puts them into the bodies of functions of one file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _call(self, name: str, node: ast.AST, *values: ast.expr) -> Any:
        places.append((self.path, node.lineno))  # type: ignore[attr-defined]
        call = ast.Call(ast.Name(f"_probe_{name}", ast.Load()), [ast.Constant(len(places) - 1), *values], [])
        return ast.copy_location(call, node)

    def _tested(self, node: Any) -> Any:
        self.generic_visit(node)
        node.test = self._call("truth", node.test, node.test)
        return node

    visit_If = visit_IfExp = visit_While = _tested  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        self.generic_visit(node)
        node.ifs = [self._call("truth", each, each) for each in node.ifs]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        node.values = [self._call("truth", each, each) for each in node.values]
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        name = type(node.ops[0]).__name__
        if len(node.ops) > 1 or name not in COMPARED:
            return self._call("truth", node, node)
        return self._call("compare", node, ast.Constant(name), node.left, node.comparators[0])

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        if isinstance(node.op, ast.Add | ast.Sub):
            node.right = self._call("term", node, node.right)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        called = isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
        if called and len(node.args) > 1 and not node.keywords:
            return self._call("least", node, node.func, *node.args)
        return node

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        reached = ast.Expr(self._call("truth", node, ast.Constant(True)))
        node.body.insert(0, ast.copy_location(reached, node))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        outside = node.args, node.returns, node.decorator_list  # are not part of what it does
        node.args, node.returns, node.decorator_list = ast.arguments([], [], None, [], [], None, []), None, []
        self.visit_For(node)
        node.args, node.returns, node.decorator_list = outside
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node


def install(parts: Sequence[str] = PRODUCT) -> None:
    """Let modules of the product that are imported from now on have probes."""
    for function in (_truth, _compare, _term, _least):
        setattr(builtins, f"_probe{function.__name__}", function)
    get_code = SourceFileLoader.get_code

    def with_probes(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        if not any(part in path for part in parts):
            return get_code(loader, name)
        tree = _Probes(path).visit(ast.parse(loader.get_data(path)))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = with_probes  # type: ignore[method-assign]
