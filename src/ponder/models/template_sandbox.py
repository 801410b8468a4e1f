"""Renders untrusted chat templates: jinja2's sandbox, with limits on time and memory.

jinja2's sandbox keeps a template away from Python, but not from looping 10^15 times or doubling a string sixty times.
So every value that a template computes is charged to a budget: its characters and items, nested ones included, as if
all were written out. Loops and macros count their iterations. Ordinary templates use less than a thousandth of this.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_SOURCE_CHARS = 1 << 18  # of a template; the longest in use have 30,000
MAX_VALUE_CHARS = 1 << 22  # of one value, plus a few times the messages' length
MAX_TOTAL_CHARS = 1 << 25  # of all values together, plus a copy of all messages for each message
MAX_ITEMS = 1 << 18  # of one value, those in its lists' lists too
MAX_ITERATIONS = 1 << 20  # of all loops
MAX_ARGUMENT = 1 << 20  # as a width, a count or an indent
MAX_INT_BITS = 1 << 12  # of an integer
MAX_SECONDS = 3.0  # of computing; waiting does not count
BLOCKED_FILTERS = (
    "center",
    "filesizeformat",
    "pprint",
    "random",
    "urlize",
    "wordwrap",
    "xmlattr",
)  # filters no prompt needs
UNMETERED_FILTERS = {
    "abs",
    "attr",
    "count",
    "d",
    "default",
    "first",
    "float",
    "int",
    "items",
    "last",
    "length",
    "round",
}
GROWING_METHODS = {
    "replace",
    "translate",
    "join",
    "expandtabs",
    "indent",
    "format",
    "ljust",
    "rjust",
    "center",
    "zfill",
}

_local = threading.local()  # the meter of the rendering that this thread is in


class TemplateLimitExceeded(jinja2.TemplateError):
    """A template that would take more than any honest one."""


class RenderBudget:
    """The limits of one rendering. `input_chars`: characters of the messages, which a template may copy."""

    def __init__(self, input_chars: int) -> None:
        self.max_value_chars, self.chars_left = MAX_VALUE_CHARS + 4 * input_chars, MAX_TOTAL_CHARS + 256 * input_chars
        self.iterations = 0
        self.deadline = time.thread_time() + MAX_SECONDS

    def count_iterations(self, count: int = 1) -> None:
        self.iterations += count
        if self.iterations > MAX_ITERATIONS:
            raise TemplateLimitExceeded(f"it loops more than {MAX_ITERATIONS:,} times")
        if not self.iterations & 255:
            self.check_time()

    def check_time(self) -> None:
        if time.thread_time() > self.deadline:
            raise TemplateLimitExceeded(f"it computes for more than {MAX_SECONDS:.0f} seconds")

    def charge(self, chars: float) -> None:
        """Charge a value of this size, before it is computed."""
        if chars > self.max_value_chars:
            raise TemplateLimitExceeded(f"it makes a text of {chars:,.0f} characters")
        self.chars_left -= int(chars)
        if self.chars_left < 0:
            raise TemplateLimitExceeded("it makes too much text")

    def charge_value(self, value: Any) -> Any:
        """Charge a new value, and return it."""
        if type(value) is str:
            self.charge(len(value))
        elif isinstance(value, list | tuple | dict | set | frozenset | Namespace):
            self.charge(count_size(value, self.max_value_chars)[0])
            self.check_time()
        elif type(value) is int and value.bit_length() > MAX_INT_BITS:
            raise TemplateLimitExceeded("it makes a number of too many digits")
        return value


def count_size(value: Any, max_chars: int) -> tuple[int, int]:
    """The characters and items of a value as if written out. Raises as soon as a limit is exceeded."""
    chars = items = 0
    waiting = [value]
    while waiting:
        part = waiting.pop()
        items += 1
        if isinstance(part, str | bytes):
            chars += len(part)
        elif isinstance(part, Mapping):
            waiting.extend(part.keys())
            waiting.extend(part.values())
        elif isinstance(part, list | tuple | set | frozenset):
            waiting.extend(part)
        elif isinstance(part, Namespace):
            waiting.append(part._Namespace__attrs)
        if items + len(waiting) > MAX_ITEMS:
            raise TemplateLimitExceeded(f"it builds lists of more than {MAX_ITEMS:,} items")
        if chars > max_chars:
            raise TemplateLimitExceeded(f"it makes a text of more than {max_chars:,} characters")
    return chars + items, items


def _current_budget() -> RenderBudget:
    budget: RenderBudget | None = getattr(_local, "budget", None)
    return budget or RenderBudget(0)  # at compile time, when jinja2 computes constants


class _MeteredCodeGenerator(CodeGenerator):
    """Generates code that charges lists and concatenated texts; `_instrument` rewrites loops and macros before."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._metered("concat_checked", super().visit_Concat, node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._metered("charge_value", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._metered("charge_value", super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._metered("charge_value", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _metered(self, name: str, visit: Callable[..., None], node: Any, frame: Frame) -> None:
        if name == "concat_checked":  # the parts are charged before they become one text
            self.write("environment.concat_checked((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")
            return
        self.write(f"environment.{name}(")
        visit(node, frame)
        self.write(")")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = _MeteredCodeGenerator

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, finalize=_check_printed)
        self.filters = {
            name: _metered_filter(name, f) for name, f in self.filters.items() if name not in BLOCKED_FILTERS
        }
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _instrument(super()._parse(source, name, filename))

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        meter, out = _current_budget(), []
        for part in parts:
            meter.charge(len(part))
            out.append(part)
        meter.check_time()
        return "".join(out)

    @staticmethod
    def charge_value(value: Any) -> Any:
        return _current_budget().charge_value(value)

    @staticmethod
    def concat_checked(parts: tuple[Any, ...]) -> str:
        meter = _current_budget()
        meter.charge(count_size(parts, meter.max_value_chars)[0])
        return "".join(map(str, parts))

    @staticmethod
    def counted_loop(values: Any) -> Iterator[Any]:
        meter = _current_budget()
        for value in values:
            meter.count_iterations()
            yield value

    @staticmethod
    def count_macro_call() -> None:
        _current_budget().count_iterations(16)  # a macro does more than a loop's iteration

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        meter = _current_budget()
        if operator == "*":
            for many, count in ((left, right), (right, left)):
                if isinstance(many, Sized) and isinstance(count, int):
                    meter.charge(count_size(many, meter.max_value_chars)[0] * max(0, count))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * max(0, right) > MAX_INT_BITS:
                raise TemplateLimitExceeded("it makes a number of too many digits")
        elif operator == "%" and isinstance(left, str):
            _check_format(left, (right,), "%")
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            meter.charge(len(left) + len(right))
            return left + right
        return meter.charge_value(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(__obj, BuiltinMethodType):
            args = _materialise(args)
            own = (
                (*args, __obj.__self__) if __obj.__name__ == "join" else (__obj.__self__, *args)
            )  # as the filter has it
            _check_arguments(__obj.__name__, own, kwargs)
        return _current_budget().charge_value(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_format(str(value.__self__), (*args, *kwargs.values()), "{")
            return wrapped(*args, **kwargs)

        return bounded


def _check_arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Before a method or filter is called: numbers must be small, and the growth of its result is charged."""
    meter = _current_budget()
    meter.count_iterations()
    given = [*args, *kwargs.values()]
    numbers = [abs(n) for n in given[1:] if isinstance(n, int | float)]
    if any(not n <= MAX_ARGUMENT for n in numbers):
        raise TemplateLimitExceeded(f"it calls {name} with {max(numbers):,}")
    if name not in GROWING_METHODS:
        return
    sizes = [count_size(part, meter.max_value_chars)[0] for part in given]
    if name == "format":
        _check_format(str(args[0]), (*args[1:], *kwargs.values()), "%")
    elif name in ("ljust", "rjust", "center", "zfill"):
        meter.charge(sizes[0] + sum(numbers))
    elif name == "translate":
        raise TemplateLimitExceeded("it calls translate")
    else:  # each character or item may become all of the other arguments, or so many spaces
        meter.charge(sizes[0] + _growth_points(name, *args[:2]) * (sum(sizes[1:]) + sum(numbers)))


def _growth_points(name: str, text: Any, first: Any = "") -> int:
    """How often a text grows: at replacements, between joined items, at lines and tabs."""
    if name == "join":
        return len(text) if isinstance(text, Sized) else 1
    if not isinstance(text, str):
        return 1
    if name == "replace":
        return text.count(str(first))
    return 1 + text.count("\t" if name == "expandtabs" else "\n")


def _materialise(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Turn iterators into lists, so that they can be charged."""
    return tuple(list(BoundedEnvironment.counted_loop(part)) if isinstance(part, Iterator) else part for part in args)


def _check_format(text: str, args: tuple[Any, ...], sign: str) -> None:
    """Each placeholder may take all arguments. Widths are numbers in the text; none may come from an argument."""
    meter = _current_budget()
    if any(len(n) > 3 for n in re.findall(r"\d+", text)) or re.search(r"%[^a-zA-Z%]*\*|\{[^{}]*\{", text):
        raise TemplateLimitExceeded("it formats numbers to absurd widths")
    each = sum(count_size(part, meter.max_value_chars)[0] for part in args) + 1000
    meter.charge(len(text) + text.count(sign) * each)


def _check_printed(value: Any) -> Any:
    if not isinstance(value, str):
        count_size(value, _current_budget().max_value_chars)
    return value


def _metered_filter(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments and result are charged. Some filters get the environment or context first."""
    first = 1 if hasattr(plain, "jinja_pass_arg") else 0

    @functools.wraps(plain)
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = _current_budget()
        if name not in UNMETERED_FILTERS:
            args = (*args[:first], *_materialise(args[first:]))
            for part in (*args[first:], *kwargs.values()):
                if not isinstance(part, str):
                    count_size(part, meter.max_value_chars)
        _check_arguments(name, args[first:], kwargs)
        return meter.charge_value(plain(*args, **kwargs))

    return metered


def _instrument(tree: nodes.Template) -> nodes.Template:
    """Make loops count their iterations, and macros count a call."""
    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            raise jinja2.TemplateAssertionError("recursive loops are not taken", loop.lineno)
        loop.iter = _call("counted_loop", [loop.iter], loop.lineno)
    blocks: list[Any] = [*tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
    for block in blocks:
        block.body.insert(0, nodes.ExprStmt(_call("count_macro_call", [], block.lineno), lineno=block.lineno))
    return tree


def _call(name: str, args: list[Any], line: int) -> nodes.Call:
    target = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(target, args, [], None, None, lineno=line)


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training masks; here it is only passed through."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own spelling)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Any) -> Any:
        return caller()


def _raise_exception(reason: str) -> None:
    raise jinja2.TemplateError(reason)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    # jinja2's own escapes <, > and &, which a prompt must not have
    meter = _current_budget()
    chars, items = count_size(value, meter.max_value_chars)
    between = 8 * indent if isinstance(indent, int) else 8 * len(indent or "")  # few values are nested deeper
    meter.charge(chars + items * (between + count_size(more, meter.max_value_chars)[0]))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


@functools.lru_cache(maxsize=32)
def _compile(template: str) -> jinja2.Template:
    if len(template) > MAX_SOURCE_CHARS:
        raise TemplateLimitExceeded(f"it has {len(template):,} characters, and at most {MAX_SOURCE_CHARS:,} make sense")
    env = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = _metered_filter("tojson", _to_json)
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form[:100])
    return env.from_string(template)


def render_sandboxed(template: str, given: Mapping[str, Any]) -> str:
    """The text that a template makes of these. Raises jinja2's errors, and those of Python's operators."""
    before = getattr(_local, "budget", None)
    _local.budget = RenderBudget(_input_chars(given))
    try:
        return _compile(template).render(**given)
    finally:
        _local.budget = before


def _input_chars(given: Any) -> int:
    """The number of characters of all input texts."""
    chars, waiting = 0, [given]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            chars += len(part)
        elif isinstance(part, dict | Mapping):  # a dict first: other mappings take longer to tell
            waiting.extend([*part.keys(), *part.values()])
        elif isinstance(part, list | tuple):
            chars += len(part)
            waiting.extend(part)
    return chars
