"""Jinja with bounds, for templates from files that nobody vouches for.

A template is a program. Here it cannot reach Python's own attributes, and it can use neither time
nor memory without end: it has the filters, methods and functions that chat templates need and no
others, and everything that makes text, makes or walks elements, loops or calls is counted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from threading import RLock
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from gateup.engine.template_budget import TEXT_COST, Budget, is_container, is_iterator
from gateup.engine.template_guards import FILTERS, METHODS, before_method, before_percent, tojson

# What calls cost in steps: a macro's takes some 5 microseconds, a filter's 2, a loop's round 0.3.
_CALL = 32
_FILTER = 8
_MAX_BITS = 4096  # of a whole number
# Names, operators, statements of a template. Those in use have up to 1,500; compiling takes some 25
# microseconds for each.
_MAX_NODES = 20_000

# Filters that walk through all of what they get.
_WALKING = "join list map max min reject rejectattr reverse select selectattr sort sum unique"
# Those that compare or print what they get, to its depths.
_DEEP = """capitalize dictsort e escape format indent join lower max min replace safe sort string
title trim unique upper"""
# Those that hand on what they got, or something out of it.
_SAME = "d default first last length count"
# Tests that compare, or look at the letters of a text.
_COMPARING = "!= < <= == > >= eq equalto ge greaterthan gt in le lessthan lower lt ne upper"
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda a, b: a in b,
    "notin": lambda a, b: a not in b,
}
# What compiled templates give every call beside its own arguments.
_COMPILED = ("_loop_vars", "_block_vars")
_STATEMENTS = (
    *(nodes.Output, nodes.If, nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock),
    *(nodes.With, nodes.Assign, nodes.AssignBlock, nodes.ExprStmt, nodes.Scope),
    *(nodes.Continue, nodes.Break),
)

# Jinja's own filters and tests, under ours.
_STOCK = ImmutableSandboxedEnvironment()


class _Namespace(Namespace):
    """Without its content in its repr: namespaces may hold one another."""

    def __repr__(self) -> str:
        return "<Namespace>"


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """`budget` is what a rendering may use: a new one for each, under `lock`.

    What goes beyond it raises SecurityError, a TemplateError of Jinja's.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, extensions: Sequence[str | type[Extension]]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=extensions,
            optimized=False,  # computing at compile time would pass the budget by
            finalize=self._shown,
        )
        self.budget = Budget()
        self.lock = RLock()
        self.filters = {name: self._filter(name) for name in FILTERS}
        self.filters |= {
            "_looped": self._looped,
            "_body": self._body,
            "_made": pass_context(lambda _, value: self._made(value)),
            "_walked": self._walked,
            "_joined": self._joined,
            "_compared": self._compared,
        }
        self.tests = {
            n: self._test(n) if n in _COMPARING.split() else f for n, f in self.tests.items()
        }
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace

    # ---- what the template is turned into ----------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Counting().visit(tree)
        tree.set_environment(self)
        return tree

    @pass_context
    def _looped(self, context: Context, value: Any) -> Any:
        """What a loop goes through, each round counted."""
        if is_iterator(value):
            return self._counted(value)
        if hasattr(value, "__len__"):
            self.budget.step(len(value))
        return value

    @pass_context
    def _body(self, context: Context, value: None, characters: int) -> None:
        """At the beginning of a loop's or macro's body, whose round or call is counted already: the
        text in it."""
        self.budget.step(0)
        self.budget.characters(characters)

    @pass_context
    def _walked(self, context: Context, value: Any) -> Any:
        self.budget.walk(value)
        return value

    @pass_context
    def _joined(self, context: Context, values: list[Any]) -> str:
        """The operator ~."""
        self.budget.characters(TEXT_COST + sum(map(self.budget.weigh, values)))
        return "".join(map(str, values))

    @pass_context
    def _compared(self, context: Context, left: Any, how: str, right: Any) -> Any:
        self.budget.compare(left, right, inside=how in ("in", "notin"))
        return _COMPARISONS[how](left, right)

    @pass_context
    def _shown(self, context: Context, value: Any) -> str:
        """A value that goes into the text, of whatever macro or block."""
        self.budget.walk(value)
        text = str(value)
        self.budget.characters(len(text) + TEXT_COST)
        return text

    # ---- counting ----------------------------------------------------------------------------

    def _counted(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            self.budget.step()
            yield value

    def _made(self, value: Any) -> Any:
        """`value`, which is new, taken from the budget."""
        if isinstance(value, str):
            self.budget.characters(len(value) + TEXT_COST)
        elif isinstance(value, int):
            if value.bit_length() > _MAX_BITS:
                raise SecurityError(f"a number of more than {_MAX_BITS:,} bits")
        elif isinstance(value, tuple):  # may be hashed, which Python does to any depth
            self.budget.step(len(value))
            self.budget.check(self.budget.weigh(value))
        elif is_container(value):
            self.budget.step(len(value))
        elif is_iterator(value):
            return self._counted(value)
        return value

    def _filter(self, name: str) -> Callable[..., Any]:
        guard = FILTERS[name]
        deep, walking, same = (name in names.split() for names in (_DEEP, _WALKING, _SAME))

        @pass_context
        def counted(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.step(_FILTER)
            if deep:
                if is_iterator(value):
                    value = list(value)  # each counted where it was made
                for each in (value, *args, *kwargs.values()):
                    budget.walk(each)
            if walking and hasattr(value, "__len__"):
                budget.step(len(value))
            if guard is not None:
                guard(budget, value, *args, **kwargs)
            if name == "tojson":
                return self._made(tojson(budget, value, *args, **kwargs))
            found = _STOCK.call_filter(name, value, args, kwargs, context=context)
            return found if same else self._made(found)

        return counted

    def _test(self, name: str) -> Callable[..., Any]:
        @pass_context
        def counted(context: Context, value: Any, *args: Any) -> Any:
            self.budget.step(_FILTER)
            if args:
                self.budget.compare(value, args[0], inside=name == "in")
            else:
                self.budget.walk(value)
            return _STOCK.call_test(name, value, args, context=context)

        return counted

    # ---- operators, attributes, calls --------------------------------------------------------

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self.budget
        if operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                # Markup, which the filter safe makes, turns < into &lt; in what it is joined with.
                grown = 5 if isinstance(left, Markup) or isinstance(right, Markup) else 1
                budget.check(grown * (len(left) + len(right)))
        elif operator == "*":
            self._before_product(left, right)
        elif operator == "**":
            if not (abs(left) <= 1 << 32 and abs(right) <= 64):
                raise SecurityError(f"a power of {left!r:.20} and {right!r:.20}")
        elif operator == "%" and isinstance(left, str):
            before_percent(budget, left, right)
        elif is_container(left):  # keys of dicts are sets
            budget.walk(left)
            budget.walk(right)
        return self._made(super().call_binop(context, operator, left, right))

    def _before_product(self, left: Any, right: Any) -> None:
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and hasattr(value, "__len__"):
                check = self.budget.check if isinstance(value, str) else self.budget.check_elements
                check(len(value) * times)
        if (
            isinstance(left, int)
            and isinstance(right, int)
            and left.bit_length() + right.bit_length() > _MAX_BITS
        ):
            raise SecurityError(f"a number of more than {_MAX_BITS:,} bits")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Nothing: `call` knows str.format."""
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, type):
            return False
        for kind, names in METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as Jinja's
        budget = __self.budget
        budget.step(_CALL + len(args) + len(kwargs))
        owner = getattr(__obj, "__self__", None)
        for kind, names in METHODS.items():
            if isinstance(owner, kind):
                if __obj.__name__ not in names:
                    raise SecurityError(f"{__obj.__name__} is not for templates")
                own = {k: v for k, v in kwargs.items() if k not in _COMPILED}
                return __self._made(__self._method(__obj, args, own))
        if isinstance(__obj, LoopContext):  # of a recursive loop
            args = tuple(__self._looped(__context, x) for x in args)
        if isinstance(__obj, LoopContext | Macro):
            return super().call(__context, __obj, *args, **kwargs)
        for each in args:
            budget.walk(each)
        return __self._made(super().call(__context, __obj, *args, **kwargs))

    def _method(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of a str, list, tuple or dict."""
        value, name = method.__self__, method.__name__
        if isinstance(value, str):
            args, kwargs = before_method(self.budget, value, name, args, kwargs)
            if name == "format":
                formatted = super().wrap_str_format(method)
                assert formatted is not None
                return formatted(*args, **kwargs)
        else:
            for each in args:
                self.budget.compare(each, value, inside=True)
        return method(*args, **kwargs)


class _Counting(NodeTransformer):
    """Sends through the environment's filters what Jinja computes without asking it.

    Its methods are named after Jinja's nodes.
    """

    def __init__(self) -> None:
        self.count = 0  # of the template's expressions and statements
        self.text = 0  # characters of the body that is being visited, without those within it

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if isinstance(node, nodes.Stmt) and not isinstance(node, _STATEMENTS):
            raise TemplateSyntaxError(
                "a statement that chat templates have no use for (block, import, autoescape, …)",
                node.lineno,
            )
        self.count += 1
        if self.count > _MAX_NODES:
            raise TemplateSyntaxError(f"a template of more than {_MAX_NODES:,} parts", node.lineno)
        return super().generic_visit(node, *args, **kwargs)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        self.text += len(node.data) + TEXT_COST
        return node

    def _with_body(self, node: nodes.Node) -> nodes.Node:
        """A body that begins with the filter _body."""
        assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
        body, outside = node.body, self.text
        node.body = []
        self.generic_visit(node)
        around, self.text = self.text - outside, 0
        node.body = [new for each in body for new in self.visit_list(each)]
        nothing = nodes.Const(None, lineno=node.lineno)
        charge = _through("_body", nothing, nodes.Const(self.text))
        node.body.insert(0, nodes.ExprStmt(charge, lineno=node.lineno))
        self.text = outside + around
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self._with_body(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _through("_looped", node.iter)
        return node

    visit_Macro = _with_body  # noqa: N815
    visit_CallBlock = _with_body  # noqa: N815

    def _new(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _through("_made", node)

    visit_List = _new  # noqa: N815
    visit_Dict = _new  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._new(node) if node.ctx == "load" else self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        return self._new(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_joined", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if len(node.ops) == 1:
            (only,) = node.ops
            return _through("_compared", node.expr, nodes.Const(only.op), only.expr)
        node.expr = _through("_walked", node.expr)
        for each in node.ops:
            each.expr = _through("_walked", each.expr)
        return node


def _through(name: str, node: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    for each in args:
        each.lineno = node.lineno
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)
