"""Words and phrases that this project does not use, and what it says instead: python tools/check_words.py

Searches the text of src, docs, README, examples, benchmarks, reproduction and tests. Prints every place, and exits with
1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = ("src", "docs", "README.md", "CONTRIBUTING.md", "examples", "benchmarks", "reproduction", "tests")
ENDINGS = (".py", ".md", ".html", ".js", ".j2")
#: Generated pages and results, which are written by programs.
SKIPPED = ("_build", "auto_gallery", "reference", "results", "__pycache__", "changelog.md", "contributing.md")
THINGS = (
    "(rows?|tables?|fit|model|message|error|note|page|column|features|votes|guides?|labels|distribution|network|data)"
)
#: What is searched for (words, or a regular expression without case) -> what to write instead.
BETTER = {
    r"laws?": "distribution, predicted distribution",
    r"likelier|likeliest": "more likely, most likely",
    r"anew": "again",
    r"beside": "next to, with",
    r"at the rim|the rim": "the edge",
    r"says it of": "a dict overriding some columns",
    r"speaks? against": "validation favours ...",
    r"as settled by": "the policy chosen in fit",
    r"the features say": "how informative the features are",
    r"knows that": "accounts for",
    r"forgets? who": "do not record who",
    r"known to be true": "pass known labels",
    r"borrows? less": "shrink less towards",
    r"tells its|tells apart": "identify",
    r"do(es)? not teach": "too few to learn",
    r"whether choosing pays": "estimates the benefit",
    r"is told at once": "fails immediately",
    r"cannot tell": "not identifiable from",
    r"knows? no (votes|question|weights)": "does not support, unknown",
    r"tells nothing": "carries no information",
    r"knew that it": "within predicted uncertainty",
    r"along what one": "conditional on",
    r"what to ask|what came out": "predictions; results",
    r"which to take when|which density when": "choosing a strategy, a distribution",
    r"what they leave": "the residuals",
    r"what is known of": "uses its estimated effect",
    r"whose effect is wanted": "feature to explain",
    r"who has very many": "large fits usually mean large predictions",
    r"alike but for": "equal except on",
    r"an interval a share|one a row|one a label": "one interval per share",
    r"whatever the way|whatever the": "in any ..., however",
    r"for want of": "for lack of",
    r"under the table stands": "the report ends with",
    r"law of its own|scales? of its own|of their own": "its own",
    r"holds? the truth": "contains the true value",
    r"holds? what (they|it) promises?": "the guarantee would not hold",
    r"stands? still": "plateaus",
    r"however long one": "however long you",
    r"never alone": "together with",
    r"as ignorance is": "widen to [0, 1] for unfamiliar rows",
    r"nothing that one could": "no measurable ...",
    r"wins? nothing": "gives no significant gain",
    r"a little short": "slightly too narrow",
    r"by its ending|its ending": "from the extension",
    r"where there is one": "if available",
    r"leaves out zero": "excludes zero",
    r"by luck alone": "by chance",
    r"numbers that nobody": "unvalidated",
    r"a part at a time": "in chunks",
    r"learns? from completed": "trains on completed",
    rf"(the|an?|its|each|every) {THINGS} (say|tell|know|ask|forget)s?": "states, shows, has, needs",
    r"(is|are|be|was|were) told|told apart|says so|nothing is said|what (they|it) (say|tell)s?": "is given, distinct",
    "whoever|whichever|one's own|of one's": "name who or which",
    r"none where": "None if",
    r"raises? (\w+ )?where": "raises ... if",
    r"where there (is|are) any": "if any",
    r"where (possible|needed|wanted|necessary|available)": "if possible, if needed",
    r"(draws|one|two|votes) an? (row|item|label|member)": "per row",
    r"what was observed": "name the thing",
}


def files() -> list[Path]:
    """The files that are searched, without this list."""
    found = []
    for place in PLACES:
        path = ROOT / place
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [
            file
            for file in inside
            if file.suffix in ENDINGS and not any(part in SKIPPED for part in file.relative_to(ROOT).parts)
        ]
    return found


def find() -> dict[str, list[str]]:
    """Places of every phrase, as ``file:line``."""
    places = defaultdict(list)
    patterns = {phrase: re.compile(rf"(?<![\w-])(?:{phrase})(?![\w-])", re.IGNORECASE) for phrase in BETTER}
    for file in files():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for phrase, pattern in patterns.items():
                places[phrase] += [f"{file.relative_to(ROOT)}:{number}" for _ in pattern.findall(line)]
    return places


def main() -> None:
    """Print the places of each phrase."""
    found = {phrase: places for phrase, places in find().items() if places}
    for phrase, places in found.items():
        print(f"{phrase!r}: {len(places)} places; write {BETTER[phrase]}", *places, sep="\n  ")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
