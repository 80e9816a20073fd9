"""The search knows that people ask questions: words that every question holds are not looked for."""

from __future__ import annotations

from typing import ClassVar

from sphinx.search.en import SearchEnglish

#: Words of questions that say nothing about their subject.
QUESTION_WORDS = """
about also am any anything can could did do does enough find from get give given going got had has have how i instead
its just like made make many may me more most much must my need needs one only our out should so some than them very
want we what when where which while who why work works would you your
"""


class SearchQuestions(SearchEnglish):
    """English, with the words of questions left out."""

    stopwords: ClassVar[set[str]] = {*SearchEnglish.stopwords, *QUESTION_WORDS.split()}
