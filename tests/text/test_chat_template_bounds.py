"""What a stranger's template may do, and what is just too much: both sides of every bound."""

from __future__ import annotations

import pytest

from aleator.core.errors import TemplateError
from aleator.text import ChatTemplate, Vocabulary, chat_template
from tests.text.vocabularies import byte_level

VOCAB = Vocabulary.from_metadata(byte_level(("<s>", "</s>"), bos_token_id=258, eos_token_id=259))


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, VOCAB).render([], **variables)  # type: ignore[arg-type]


def test_the_bounds_themselves() -> None:
    assert chat_template.MAX_SOURCE == 2**20
    assert chat_template.MAX_OUTPUT == 2**24
    assert chat_template.MAX_SECONDS == 10
    assert chat_template.MAX_NUMBER == 100_000
    assert chat_template.MAX_BITS == 4096


def test_length_of_the_template() -> None:
    assert len(render("a" * 2**20)) == 2**20
    with pytest.raises(TemplateError, match=r"has 1048577 characters; at most 1048576"):
        ChatTemplate("a" * (2**20 + 1), VOCAB)


TEXTS = {
    "output": ("{{{{ 'a' * 60 }}}}{{{{ 'b' * {n} }}}}", 40),
    "repeated": ("{{{{ 'a' * {n} }}}}", 100),
    "repeated by": ("{{{{ {n} * 'a' }}}}", 100),
    "list": ("{{{{ ([1] * {n}) | length }}}}", 100),
    "tuple": ("{{{{ ({n} * (1,)) | length }}}}", 100),
    "sum": ("{{{{ 'a' * 60 + 'b' * {n} }}}}", 40),
    "sum of lists": ("{{{{ ([1] * 60 + [2] * {n}) | length }}}}", 40),
    "joined": ("{{{{ 'a' * 60 ~ 'b' * {n} }}}}", 40),
    "joined number": ("{{{{ 'a' * {n} ~ 12345 }}}}", 95),
}


@pytest.mark.parametrize("case", TEXTS)
def test_length_of_what_is_built(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT", 100)
    source, most = TEXTS[case]
    assert (
        render(source.format(n=most)) in ("100", "a" * 100)
        or len(render(source.format(n=most))) == 100
    )
    with pytest.raises(TemplateError, match="a text of more than 100 characters"):
        render(source.format(n=most + 1))


DOUBLED = (
    "{% set ns = namespace(x='', y='') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    + ("{% set ns.y = [ns.y, ns.y] %}{% endfor %}")
)


@pytest.mark.parametrize(
    "use",
    [
        "{{ ns.x }}", "{{ ns.x ~ 1 }}", "{{ ns.x | string }}", "{{ [ns.x] | join }}", "{{ ns.x | tojson }}",
        "{{ '%s' % ns.x }}", "{{ '%s' | format(ns.x) }}", "{{ '{}'.format(ns.x) }}", "{{ ns.x == ns.y }}",
        "{{ {(ns.x,): 1} }}", "{{ ns[(ns.x,)] }}", "{{ ns.x in [ns.y] }}", "{{ {'a': {'b': ns.x}} }}",
    ],
)  # fmt: skip
def test_lists_that_double(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT", 10_000)
    with pytest.raises(TemplateError, match="a text of more than 10000 characters"):
        render(DOUBLED + use)


def test_levels_of_lists() -> None:
    deep = "{% set ns = namespace(x=0) %}{% for i in range(N) %}{% set ns.x = [ns.x] %}{% endfor %}"
    assert render(deep.replace("N", "512") + "{{ ns.x }}") == "[" * 512 + "0" + "]" * 512
    for use in ("{{ ns.x }}", "{% set l = [] %}{{ l.append(l) }}{{ l }}"):
        with pytest.raises(TemplateError, match="lists of more than 512 levels"):
            render(deep.replace("N", "513") + use)


def test_a_wide_indentation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT", 100_000)
    with pytest.raises(TemplateError, match="a text of more than 100000 characters"):
        render("{{ [[[1]]] | tojson(indent=50000) }}")


NUMBERS = {
    "of a filter": ("{{{{ ('a' | center({n})) | length }}}}", "100000"),
    "named, of a filter": ("{{{{ ('a' | center(width={n})) | length }}}}", "100000"),
    "of a method": ("{{{{ 'a'.ljust({n}) | length }}}}", "100000"),
    "of a function": ("{{{{ range({n}) | length }}}}", "100000"),
    "of a filter with a context": ("{{{{ 'aa' | replace('a', 'b', {n}) }}}}", "bb"),
    "named, of a method": ("{{{{ 'a b'.split(maxsplit={n}) | length }}}}", "2"),
    "of tojson": ("{{{{ {{}} | tojson(indent={n}) }}}}", "{}"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_size_of_arguments(case: str) -> None:
    source, text = NUMBERS[case]
    assert render(source.format(n=100_000)) == text
    with pytest.raises(TemplateError, match="100001 is too great an argument"):
        render(source.format(n=100_001))


def test_negative_arguments_are_numbers_too() -> None:
    assert render("{{ range(-100000) | length }}") == "0"
    with pytest.raises(TemplateError, match="-100001 is too great"):
        render("{{ range(-100001) | length }}")


def test_what_is_filtered_may_be_any_number() -> None:
    assert render("{{ 100001 | string }}{{ 100001 | replace('1', '2') }}") == "100001200002"
    assert render("{{ (100001, 2) | max }}") == "100001"


def test_a_macro_takes_any_number() -> None:
    macro = "{% macro f(n) %}{{ n }}{% endmacro %}"
    assert render(macro + "{{ f(1000000000000) }}{{ f(n=-100001) }}") == "1000000000000-100001"
    with pytest.raises(TemplateError, match="100001 is too great"):
        render("{% macro f(n) %}{{ range(n) | length }}{% endmacro %}{{ f(100001) }}")


@pytest.mark.parametrize(
    ("most", "too_much"),
    [
        ("2 ** 2048", "2 ** 2049"),
        ("1 ** 4096", "1 ** 4097"),
        ("2 ** -2048", "2 ** -2049"),
        ("7 ** 1365", "7 ** 1366"),
        ("1 + n", "1 + 2 * n"),
        ("n + 1", "n * 2 + 1"),
        ("n % 5", "(n * 2) % 5"),
        ("5 % n", "5 % (n * 2)"),
        ("n * n", "n * n * n"),
        ("0 ** 3", "0 ** (n * 2)"),
    ],
)
def test_size_of_integers(most: str, too_much: str) -> None:
    n = 2**4095  # 4,096 bits
    assert render(f"{{{{ ({most}) is number }}}}", n=n) == "True"
    with pytest.raises(TemplateError, match="makes a number of more than 4096 bits"):
        render(f"{{{{ ({too_much}) is number }}}}", n=n)


def test_fractions_are_free() -> None:
    assert render("{{ 0.5 ** 2 }}{{ 2.0 * 3 }}{{ 7 % 4 }}{{ 0.5 + 1 }}") == "0.256.031.5"


FORMATS = {
    "operator": "{{{{ ('%{n}d' % 3) | length }}}}",
    "filter": "{{{{ ('%{n}d' | format(3)) | length }}}}",
    "method": "{{{{ '{{:{n}}}'.format(3) | length }}}}",
    "mapping": "{{{{ '{{x:{n}}}'.format_map({{'x': 3}}) | length }}}}",
    "flags": "{{{{ ('%- {n}d' % 3) | length }}}}",
    "kept method": "{{% set f = '{{0:>{n}}}'.format %}}{{{{ f(3) | length }}}}",
}


@pytest.mark.parametrize("case", FORMATS)
def test_width_of_formats(case: str) -> None:
    assert render(FORMATS[case].format(n=99_999)) == "99999"
    with pytest.raises(TemplateError, match="is too wide"):
        render(FORMATS[case].format(n=100_000))


@pytest.mark.parametrize("source", ["{{ '%*d' % (3, 4) }}", "{{ '%.*f' | format(3, 4.0) }}"])
def test_widths_from_arguments_are_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="is too wide"):
        render(source)


def test_filters_that_are_no_formats_take_any_text() -> None:
    assert render("{{ '%100000d' | upper }}{{ '{:100000}'.upper() }}") == "%100000D{:100000}"
    assert render("{{ '%100000d' + 'a' }}") == "%100000da"


def test_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr("aleator.text.chat_template.time.monotonic", lambda: now)
    clock = chat_template._Clock()
    clock.check()  # nothing has begun
    clock.start()
    now = 15.0
    clock.check()
    now = 15.001
    with pytest.raises(TemplateError, match="not done after 10 seconds"):
        clock.check()


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in [1] %}{% endfor %}", "{% for i in [1] if false %}{% endfor %}", "{{ x | upper }}",
        "{{ 'a'.upper() }}", "{{ range(1) }}",
    ],
)  # fmt: skip
def test_every_loop_filter_and_call_looks_at_the_clock(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0] + [11.0] * 100)
    template = ChatTemplate(source, VOCAB)
    monkeypatch.setattr("aleator.text.chat_template.time.monotonic", lambda: next(times))
    with pytest.raises(TemplateError, match="not done"):
        template.render([], x="a")


def test_jinjas_filler_text_is_not_there() -> None:
    with pytest.raises(TemplateError, match="'lipsum' is undefined"):
        render("{{ lipsum() }}")
