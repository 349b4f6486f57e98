"""Strict parsing of YAML and JSON, with errors that name the place."""

import pytest

from pipeplan.core.errors import InputError
from pipeplan.io.text import parse_data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"x\.yaml, line 3, column 1: 'a' stands twice"),
        ("a:\n  b: {c: 1, c: 2}\n", r"x\.yaml, line 2, column 13: 'c' stands twice"),
        ("a: [1, 2\nb: 3\n", r"x\.yaml, line \d"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', r"x\.yaml: 'c' stands twice"),
        ("a: !!python/object/apply:os.getcwd []\n", r"x\.yaml, line 1"),
        ("? [a, b]\n: 1\n", r"x\.yaml, line 1, column 3: a key must be a name"),
    ],
)
def test_bad_text_is_refused_where_it_is_bad(text: str, message: str) -> None:
    """Repeated keys, broken syntax and foreign objects are errors with line and column."""
    with pytest.raises(InputError, match=message):
        parse_data(text, "x.yaml")


def test_json_and_flow_yaml_both_begin_with_a_brace() -> None:
    """A text that begins with a brace is JSON if it can be, and YAML otherwise."""
    assert parse_data('{"a": [1, 2]}', "x") == {"a": [1, 2]}
    assert parse_data("{a: [1, 2]}", "x") == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("a: 1:30", "90"),
        ("a: -1:30", "-90"),
        ("a: 1:30:15.5", "5415.5"),
        ("a: 010", "8"),
        ("a: +017", "15"),
        ("010: 1", "8"),
    ],
)
def test_numbers_that_yaml_reads_otherwise_are_refused(text: str, reading: str) -> None:
    """Base 60 and base 8 of YAML 1.1 are refused with the number that they would have been; in quotes they are text."""
    with pytest.raises(InputError, match=rf"x\.yaml, line 1.*would be read as {reading} "):
        parse_data(text, "x.yaml")
    assert parse_data("a: '1:30'\nb: '010'\nc: 0\nd: 0x1F\ne: 10\nf: 0.5", "x") == {
        "a": "1:30", "b": "010", "c": 0, "d": 31, "e": 10, "f": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5,
        "[" * 10**5 + "]" * 10**5,
        '{"a":' * 10**5 + "1" + "}" * 10**5,
        "- " * 10**5 + "a",
        "? " * 10**5 + "a",
        "a:\n" + "".join(" " * i + "a:\n" for i in range(1, 400)),
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    """However deep lists and mappings nest, in JSON and YAML, there is an error and no crash."""
    with pytest.raises(InputError, match=r"deeper than 100 levels|did not find"):
        parse_data(text, "x")


def test_references_are_counted_as_what_they_stand_for() -> None:
    """A short text that stands for a billion values is refused, and so is one that refers to itself."""
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    with pytest.raises(InputError, match="more than 20000000 values"):
        parse_data(laughs, "x")
    with pytest.raises(InputError, match=r"\*a refers to what it is part of"):
        parse_data("a: &a [*a]", "x")
    assert parse_data("a: &a [1]\nb: *a", "x") == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    ("text", "lesson"),
    [
        ('{"a": NaN}', "NaN is not a number of JSON"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": ' + "9" * 5000 + "}", "too long"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("a: 2026-99-99", "not valid YAML"),
        ("a: !!int x", "not valid YAML"),
        ('{"a": "\\ud800"}', "half a character"),
    ],
)
def test_what_python_trips_over_is_refused(text: str, lesson: str) -> None:
    """Numbers that are none, too long or no date, and characters that cannot be written, are bad input."""
    with pytest.raises(InputError, match=lesson):
        parse_data(text, "x")
