"""A program's source with hooks: what tracing has to see and Python does not let a value see.

f-strings, `%`, calls, attributes and loops ask the hooks; each statement of the program itself is a
point where paths can meet. Lines stay what they are, so errors name the program's own.
"""

import ast
import linecache
import threading
from collections.abc import Iterator
from types import CodeType, FunctionType

HOOKS = "__umbel_trace__"
TURN = "__umbel_turn__"  # the variable of a `while` that was made a `for`
_REFUSED: dict[type[ast.stmt], str] = {
    ast.Try: "try looks at failures",
    ast.TryStar: "try looks at failures",
    ast.Import: "an import runs other code",
    ast.ImportFrom: "an import runs other code",
    ast.Global: "global changes a variable outside",
    ast.Nonlocal: "nonlocal changes a variable outside",
    ast.ClassDef: "a class is made",
    ast.AsyncFunctionDef: "an async function is made",
    ast.AsyncFor: "async for waits for something else",
    ast.AsyncWith: "async with waits for something else",
}


class NoSource(Exception):
    """The function's source cannot be had; the message says why."""


_lock = threading.Lock()
# Code objects of different files can be equal, so the file is part of the keys.
_names: dict[tuple[str, CodeType], dict[str, int]] = {}
_codes: dict[tuple[str, CodeType, bool], CodeType] = {}


def rewritten(function: FunctionType, *, with_points: bool) -> CodeType:
    """The function's code with hooks. Raises `NoSource`."""
    key = (function.__code__.co_filename, function.__code__, with_points)
    with _lock:
        if key not in _codes:
            _codes[key] = _rewrite(function, with_points)
        return _codes[key]


def loaded_names(function: FunctionType) -> dict[str, int]:
    """Names that the function reads, each with the first line that does. Raises `NoSource`."""
    key = (function.__code__.co_filename, function.__code__)
    with _lock:
        if key not in _names:
            _names[key] = _loaded(function)
        return _names[key]


def _loaded(function: FunctionType) -> dict[str, int]:
    _, node = _find(function)
    names: dict[str, int] = {}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            names.setdefault(inner.id, inner.lineno)
    return names


def _rewrite(function: FunctionType, with_points: bool) -> CodeType:
    tree, node = _find(function)
    original = function.__code__
    plain = _code_of(compile(tree, original.co_filename, "exec", dont_inherit=True), original)
    if plain is None or plain.co_code != original.co_code:
        raise NoSource("its source file is not what was imported")
    rewriter = _Rewriter(with_points)
    node.body = rewriter.block(node.body)
    _strip_signature(node)
    ast.fix_missing_locations(tree)
    code = compile(tree, original.co_filename, "exec", dont_inherit=True)
    found = _code_of(code, original)
    assert found is not None
    return found


def _find(function: FunctionType) -> tuple[ast.Module, ast.FunctionDef]:
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise NoSource("its source cannot be read")
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        raise NoSource("its source cannot be read") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return tree, node
    raise NoSource("it is no function written with def")


def _code_of(code: CodeType, original: CodeType) -> CodeType | None:
    return next(
        (
            inner
            for inner in _nested(code)
            if inner.co_name == original.co_name and inner.co_firstlineno == original.co_firstlineno
        ),
        None,
    )


def _nested(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _nested(const)


def _strip_signature(node: ast.FunctionDef) -> None:
    # The function is made anew with the original's defaults. The decorators stay in the tree for
    # the line numbers; the code of the function itself does not contain them.
    node.returns = None
    node.args.defaults = []
    node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
    for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
        arg.annotation = None


class _Rewriter(ast.NodeTransformer):
    def __init__(self, with_points: bool) -> None:
        self._with_points = with_points

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body:
            if self._with_points:
                out.append(ast.copy_location(ast.Expr(_hook("point", statement)), statement))
            out.append(self.visit(statement))
        return out

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt) and type(node) in _REFUSED:
            reason = ast.copy_location(ast.Constant(_REFUSED[type(node)]), node)
            return ast.copy_location(ast.Expr(_hook("leave", node, reason)), node)
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(node, ast.stmt) and isinstance(body, list):
                setattr(node, name, self.block(body))
                continue
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse") and isinstance(node, ast.stmt):
                continue
            if isinstance(value, list):
                value[:] = [self.visit(v) if isinstance(v, ast.AST) else v for v in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        inner = _Rewriter(with_points=False)
        node.body = inner.block(node.body)
        node.decorator_list = [self.visit(decorator) for decorator in node.decorator_list]
        node.args = self.visit(node.args)
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        self.generic_visit(node)
        inner = [part for case in node.cases for part in ast.walk(case.pattern)]
        kinds = {type(part) for part in inner if isinstance(part, ast.pattern)}
        if kinds - {ast.MatchValue, ast.MatchOr, ast.MatchAs}:  # these are compared by ==
            has_class = ast.Constant(ast.MatchClass in kinds)
            node.subject = _hook("matched", node.subject, node.subject, has_class)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        # Patterns are compared by Python itself; calls and attributes in them are names only.
        node.guard = self.visit(node.guard) if node.guard is not None else None
        node.body = self.block(node.body)
        return node

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        return self._leave(node, "yield")

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        return self._leave(node, "yield")

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self._leave(node, "await")

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = _hook("turns", node.iter, node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        """`for _ in forever: if not test: break ...`, so that its turns are counted."""
        self.generic_visit(node)
        if node.orelse:
            return node  # a break would leave it out
        stop = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], [])
        target = ast.Name(TURN, ast.Store())
        loop = ast.For(target, _hook("forever", node.test), [stop, *node.body], [])
        for new in (stop, stop.test, stop.body[0], target, loop):
            ast.copy_location(new, node.test)
        return ast.copy_location(loop, node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        pieces: list[ast.expr] = []
        for value in node.values:
            if not isinstance(value, ast.FormattedValue):
                pieces.append(value)
                continue
            spec: ast.expr = ast.Constant("")
            if value.format_spec is not None:
                spec = self.visit(value.format_spec)
            items = [self.visit(value.value), ast.Constant(value.conversion), spec]
            pieces.append(ast.Tuple(items, ast.Load()))
        return _hook("fstring", node, *pieces)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mod):
            return _hook("mod", node, node.left, node.right)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if not any(isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot) for op in node.ops):
            return node
        if len(node.ops) > 1:
            return _hook("leave", node, ast.Constant("`in` or `is` in a chain of comparisons"))
        is_membership = isinstance(node.ops[0], ast.In | ast.NotIn)
        hook = "contains" if is_membership else "is_same"
        found = _hook(hook, node, node.left, node.comparators[0])
        if isinstance(node.ops[0], ast.In | ast.Is):
            return found
        return ast.copy_location(ast.UnaryOp(ast.Not(), found), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mod):
            reason = ast.Constant("%= may make a text that cannot be followed")
            return ast.copy_location(ast.Expr(_hook("leave", node, reason)), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            return _hook("attribute", node, node.value, ast.Constant(node.attr))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.func = _hook("callable", node.func, node.func)
        return node

    def _leave(self, node: ast.expr, what: str) -> ast.AST:
        return _hook("leave", node, ast.Constant(f"{what} waits for something else"))


def _hook(name: str, at: ast.AST, *args: ast.expr) -> ast.Call:
    hooks = ast.copy_location(ast.Name(HOOKS, ast.Load()), at)
    function = ast.copy_location(ast.Attribute(hooks, name, ast.Load()), at)
    call = ast.copy_location(ast.Call(function, list(args), []), at)
    return ast.fix_missing_locations(call)
