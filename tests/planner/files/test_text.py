"""YAML and JSON are read strictly, and errors name the place."""

import pytest

from pipeplan.errors import InputError
from pipeplan.files.text import parse_data


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
