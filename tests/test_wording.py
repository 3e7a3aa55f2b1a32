"""The wording of errors is checked here, in one table; other tests name an error by its code."""

import re

import wording


def test_the_page_shows_the_wording_of_every_error() -> None:
    """On a difference: read the new wording aloud, then run ``python tests/wording.py``."""
    assert wording.PAGE.read_text(encoding="utf-8") == wording.page()


def test_every_error_has_a_code() -> None:
    assert wording.without_code() == []


def test_codes_are_short_words_with_hyphens() -> None:
    codes = {row.code for row in wording.rows()}
    assert codes
    assert [code for code in codes if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+){0,3}", code)] == []


def test_messages_use_plain_words() -> None:
    hard = re.compile(r"\bis no [a-z]|\bare no [a-z]|of (your|its|one's) own\b|\banew\b|\b(some|no)body\b|\brefuse")
    plain = re.compile("there (is|are) no")  # unlike "X is no Y"
    assert [row for row in wording.rows() if hard.search(plain.sub("", row.message))] == []
