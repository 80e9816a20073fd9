"""Tables of a comparison as text."""

from __future__ import annotations

__all__ = ["latex_table", "markdown_table"]

Rows = list[list[tuple[str, str]]]

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "•": r"$\bullet$",
    "<": r"$<$",
    ">": r"$>$",
}


def markdown_table(rows: Rows, note: str) -> str:
    """Rows of (text, mark) as a Markdown table, and a note under it.

    Args:
        rows: The first is the head; marks are ``"head"``, ``"best"``, ``"worse"`` or nothing.
        note: A sentence.

    Returns:
        Text that ends with a line break.

    Example:
        >>> print(markdown_table([[("learner", "head")], [("kNN", "best")]], "One."), end="")
        | learner |
        |---|
        | **kNN** |
        <BLANKLINE>
        One.
    """
    marks = {"best": "**{}**", "worse": "{} •"}
    lines = [
        "| " + " | ".join(marks.get(mark, "{}").format(text.replace("|", "\\|")) for text, mark in row) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join([*lines, "", note]) + "\n"


def latex_table(rows: Rows, note: str) -> str:
    r"""Rows of (text, mark) as a LaTeX table in the style of ``booktabs``, and a note under it.

    Args:
        rows: As :func:`markdown_table` takes them.
        note: A sentence.

    Returns:
        Text that ends with a line break.

    Example:
        >>> print(latex_table([[("a_b", "head")], [("1 ± 2", "best")]], "One.").splitlines()[4])
        \textbf{1 $\pm$ 2} \\
    """
    marks = {"best": r"\textbf{{{}}}", "worse": r"{} $\bullet$"}
    body = [" & ".join(marks.get(mark, "{}").format(_escape(text)) for text, mark in row) + r" \\" for row in rows]
    n_words = sum(not any(sign in text for sign in "↑↓") and not text.endswith(" s") for text, _ in rows[0])
    columns = "l" * n_words + "r" * (len(rows[0]) - n_words)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", rf"\par\smallskip {_escape(note)}"]) + "\n"


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
