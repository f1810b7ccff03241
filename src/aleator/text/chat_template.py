"""Chat templates: a conversation in the text format that a model was trained on.

Templates come with model files, so they are untrusted programs: they run in jinja2's immutable sandbox, with
limits on what they repeat, build and print.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from aleator.core.errors import ParameterError, TemplateError
from aleator.text.rendered import Marks, Rendered, control_names, guarded_names, longest_first
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes
    from jinja2.parser import Parser

MAX_SOURCE = 1 << 20  # characters of a template
MAX_OUTPUT = 1 << 24  # characters of a rendered conversation, and of what operators build
MAX_SECONDS = 10.0  # of rendering
MAX_NUMBER = 100_000  # largest argument of a function, method or filter, such as a width or a count
MAX_BITS = 4096  # of an integer
MAX_LEVELS = 512  # of lists within lists
_FILENAME = "<template>"
# A width of six digits or more, or one from the arguments.
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{6}|\*)|\{[^}]*\d{6}")
# Such as "System role not supported"; others name it beside the roles that are.
_NO_SYSTEM = re.compile(r"(?is)(?=.*\bsystem)(?=.*\bsupport)(?=.*(\bnot\b|n't))")


class ChatTemplate:
    """A chat template in jinja2's language, with the functions that Hugging Face defines for it.

    Attributes:
        source: the template.
        variables: the names it reads, such as "messages", "tools" or "enable_thinking".
    """

    def __init__(self, source: str | None, vocab: Vocabulary) -> None:
        """Compile a template.

        Args:
            source: often ``vocab.chat_template``.
            vocab: has the texts of BOS, EOS and the like.

        Raises:
            TemplateError: it is missing or does not parse; names the line.
        """
        if source is None or not source.strip():
            raise TemplateError(
                "the model has no chat template: give one (--chat-template FILE), or generate from "
                "a plain prompt"
            )
        if len(source) > MAX_SOURCE:
            raise TemplateError(
                f"the chat template has {len(source)} characters; at most {MAX_SOURCE} are read"
            )
        self.source = source
        self._clock = _Clock()
        self._template, self.variables = _compile(source, self._clock)
        self._guarded = guarded_names(vocab, source)
        self._names = longest_first([*control_names(vocab), *self._guarded])
        self._tokens = {
            f"{name}_token": "" if token is None else vocab.text(token)
            for name in ("bos", "eos", "unk", "pad")
            for token in [getattr(vocab.special, name)]
        }

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Render a conversation as text; :meth:`encode` makes tokens of it.

        Args:
            messages: each has a "role" ("system", "user", "assistant", ...) and usually a "content".
            add_generation_prompt: end with the start of the assistant's turn.
            tools: descriptions of functions, for templates that read them.
            variables: other variables that the template reads.

        Raises:
            ParameterError: messages have another form.
            TemplateError: the template fails, refuses the conversation, or exceeds a limit; names the line.
        """
        for i, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ParameterError(
                    f"messages[{i}] must be a mapping with a 'role', not {message!r}"
                )
        context: dict[str, Any] = self._tokens | {
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "documents": None,
        }
        self._clock.start()
        pieces, length = [], 0
        try:
            for piece in self._template.generate(_given(context | variables)):
                length += len(piece)
                _check_length(length)
                pieces.append(piece)
        except Exception as error:  # expressions of a template may raise anything
            raise _located(error) from None
        return "".join(pieces)

    def rendered(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Rendered:
        """Render the conversation as text that tells the template's parts from those of the messages.

        Arguments and errors are those of :meth:`render`.
        """
        marks = Marks([messages, options], self._names)
        marked = [
            # A model's messages may contain its marks of reasoning, which templates look for.
            marks.mark(m, self._guarded if _of_assistant(m) else ())
            for m in messages
        ]
        return Rendered(
            self.render(marked, **{name: marks.mark(value) for name, value in options.items()}),
            marks.literal,
            self._guarded,
        )

    def encode(
        self, messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, **options: Any
    ) -> list[int]:
        """Render the conversation as token ids, to generate from.

        The template's control tokens are tokens; names of control tokens in the messages are text.

        The tokenizer is the model's.  Other arguments and errors are those of :meth:`render`; TokenizerError
        for text that the vocabulary cannot represent.
        """
        return self.rendered(messages, **options).as_prompt(tokenizer)


class _Given(list[Any]):
    """A list of the caller's, which a template may not change."""


def _given(value: Any) -> Any:
    """A variable of a template, whose lists it may not change."""
    if isinstance(value, list):
        return _Given(map(_given, value))
    if type(value) is tuple:
        return tuple(map(_given, value))
    if isinstance(value, Mapping):
        return {key: _given(each) for key, each in value.items()}
    return value


def _of_assistant(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


class _Clock:
    """Stops a rendering that takes too long; every loop, call and filter checks it."""

    def __init__(self) -> None:
        self.deadline = math.inf

    def start(self) -> None:
        self.deadline = time.monotonic() + MAX_SECONDS

    def check(self) -> None:
        if time.monotonic() > self.deadline:
            raise TemplateError(f"not done after {MAX_SECONDS:g} seconds")


def _compile(source: str, clock: _Clock) -> tuple[Template, frozenset[str]]:
    """Compile a template; return it with the names of the variables that it reads."""
    import jinja2
    from jinja2 import meta

    environment = _environment(clock)
    try:
        parsed = environment.parse(source)
        variables = frozenset(meta.find_undeclared_variables(parsed)) - environment.globals.keys()
        tree = _insert_checks(parsed)
        tree.set_environment(environment)
        code = environment.compile(tree, filename=_FILENAME)
        template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
        return template, variables
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from None
    except (RecursionError, SyntaxError, MemoryError, ValueError) as error:
        raise TemplateError(f"the chat template cannot be compiled: {error}") from None


def _insert_checks(tree: nodes.Template) -> nodes.Template:
    """Make each loop iteration check the clock, and limit what ``~`` builds and comparisons walk."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def call(name: str, arguments: list[Any]) -> nodes.Expr:
        return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)

    def bounded(node: nodes.Expr) -> nodes.Expr:
        """What is compared, or looked up, is walked whole."""
        return node if isinstance(node, (nodes.Const, nodes.Slice)) else call("bounded", [node])

    class Inserter(NodeTransformer):
        def visit_For(self, node: nodes.For) -> nodes.For:
            self.generic_visit(node)
            # The condition sees every iteration, the body only those that pass it.
            passed = [] if node.test is None else [node.test]
            node.test = call("check_round", passed)
            return node

        def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
            self.generic_visit(node)
            return call("concatenate", node.nodes)

        def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
            self.generic_visit(node)
            node.expr = bounded(node.expr)
            for operand in node.ops:
                operand.expr = bounded(operand.expr)
            return node

        def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:
            self.generic_visit(node)
            node.key = bounded(node.key)
            return node

        def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:
            self.generic_visit(node)
            node.arg = bounded(node.arg)
            return node

    checked: nodes.Template = Inserter().visit(tree)
    return checked


def _environment(clock: _Clock) -> Environment:
    from jinja2.ext import Extension, loopcontrols
    from jinja2.runtime import Macro
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Accepts ``{% generation %}``, which marks the assistant's words for training."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operation(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            """Templates may extend their own lists, as Kimi K2's do; so does llama.cpp, not transformers."""
            own = type(obj) is list and attr in ("append", "pop")
            return own or super().is_safe_attribute(obj, attr, value)

        # Underscores keep the names free for the template's own arguments, as in the base class.
        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
            clock.check()
            if getattr(__obj, "__name__", "") in ("format", "format_map"):
                # The base class wraps the methods of strings.
                _check_format(getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None))
            owner = getattr(__obj, "__self__", None)
            if type(owner) is list and __obj.__name__ == "append" and len(owner) >= MAX_NUMBER:
                raise TemplateError(f"a list of more than {MAX_NUMBER} entries")
            # A macro gets what a conversation contains, and what it does with that is checked there.
            if not isinstance(__obj, Macro):
                _check_arguments((*args, *kwargs.values()))
            return super().call(__context, __obj, *args, **kwargs)

        @staticmethod
        def check_round(passed: Any = True) -> Any:
            clock.check()
            return passed

        @staticmethod
        def concatenate(*parts: Any) -> str:
            texts = [str(_bounded(part)) for part in parts]
            _check_length(sum(map(len, texts)))
            return "".join(texts)

        bounded = staticmethod(_bounded)

    sandbox = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, loopcontrols],
        finalize=_bounded,
    )
    sandbox.filters = {name: _checked(f, clock) for name, f in sandbox.filters.items()}
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    del sandbox.globals["lipsum"]
    return sandbox


def _checked(function: Callable[..., Any], clock: _Clock) -> Callable[..., Any]:
    """Make a filter check the clock, and refuse large values, and large numbers as further arguments."""
    first = 2 if hasattr(function, "jinja_pass_arg") else 1

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        clock.check()
        if function.__name__ == "do_format":
            _check_format(args[0])
        _bounded(args[first - 1])
        _check_arguments((*args[first:], *kwargs.values()))
        return function(*args, **kwargs)

    return checked


def _bounded(value: Any, indent: int = 0) -> Any:
    """``value``, whose text is not too long: lists within lists may be exponentially many."""
    if not isinstance(value, (list, tuple, Mapping)):
        return value
    length, levels = 0, [iter([value])]
    while levels:
        for of in levels[-1]:
            if isinstance(of, str):
                length += len(of)
            elif isinstance(of, (list, tuple, Mapping)):
                length += len(of) * (1 + indent * len(levels))
                whole = of if isinstance(of, (list, tuple)) else chain.from_iterable(of.items())
                levels.append(iter(whole))
                break
        else:
            levels.pop()
        _check_length(length)
        if len(levels) > MAX_LEVELS + 1:
            raise TemplateError(f"lists of more than {MAX_LEVELS} levels")
    return value


def _check_length(length: int) -> None:
    if length > MAX_OUTPUT:
        raise TemplateError(f"it builds a text of more than {MAX_OUTPUT} characters")


def _check_arguments(values: Iterable[Any]) -> None:
    for value in values:
        _bounded(value)
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise TemplateError(
                f"{value} is too great an argument; numbers up to {MAX_NUMBER} are allowed"
            )


def _check_format(form: Any) -> None:
    if isinstance(form, str) and _WIDE_FORMAT.search(form):
        raise TemplateError(f"the format {form!r} is too wide")


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length()
        if max(bits, right.bit_length()) > MAX_BITS:
            raise TemplateError(f"{operator!r} makes a number of more than {MAX_BITS} bits")
    elif operator == "%":
        _check_format(left)
        _bounded(right)
    elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        _check_length(len(left) + len(right))
    elif operator == "*":
        for items, count in ((left, right), (right, left)):
            if isinstance(items, Sized) and isinstance(count, int):
                _check_length(len(items) * count)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON of a value, not escaped for HTML, as Hugging Face's filter does, unlike jinja2's own."""
    _check_arguments((indent,))
    _bounded(value, indent or 0)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """What filters such as ``map`` and ``select`` give, as a list for JSON."""
    if not isinstance(value, Iterator):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return list(value)


def _raise_exception(message: str) -> NoReturn:
    remedy = ""
    if _NO_SYSTEM.match(str(message)):  # Gemma 2
        remedy = ": write what the system says at the beginning of the user's first message"
    raise TemplateError(f"it refuses the conversation: {message}{remedy}")


def _located(error: Exception) -> TemplateError:
    """``error`` with the line of the template where it occurred."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == _FILENAME]
    where = f", line {lines[-1]}" if lines else ""
    what = str(error) or type(error).__name__
    return TemplateError(f"chat template{where}: {what}")
