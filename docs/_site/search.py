"""The search accepts questions: it ignores words that occur in any question."""

from __future__ import annotations

from typing import ClassVar

from sphinx.search.en import SearchEnglish

#: Question words without information about the subject.
QUESTION_WORDS = """
about also am any anything can could did do does enough find from get give given going got had has have how i instead
its just like made make many may me more most much must my need needs one only our out should so some than them very
want we what when where which while who why work works would you your
"""


class SearchQuestions(SearchEnglish):
    """English, without question words."""

    stopwords: ClassVar[set[str]] = {*SearchEnglish.stopwords, *QUESTION_WORDS.split()}
