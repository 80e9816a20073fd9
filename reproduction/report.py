"""The report of a reproduction: verdicts, every table cell by cell next to the printed one, and figure A1."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

from reproduction import claims as figures
from reproduction.claims import LEARNERS, LEVELS, MEASURES, METRICS, STRATEGIES, TABLES, Gap, Gaps, Results, Spread
from reproduction.config import NEAREST, RECIPES, STUDIES
from reproduction.studies import options_of
from snefy_ldl._internal.files import write_bytes

#: A cell without a figure.
NOTHING = "–"
#: Scores of two learners that differ by less in every split are one in a table of four digits.
SAME = 1e-4
#: Recipes of the paper's model.
PAPERS = tuple(recipe for recipe in RECIPES if recipe != "default")


def markdown_table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown; the first column holds names, the others figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines) + "\n"


def number(value: float, digits: int) -> str:
    """A number without the zero before its point.

    Examples:
        >>> number(0.125, 2), number(-0.5, 1), number(1.25, 2)
        ('.12', '−.5', '1.25')
    """
    return f"{value:.{digits}f}".replace("-", "−").replace("0.", ".", abs(value) < 1.0)


def value_cell(spread: Spread | None, digits: int, gap: Gap | None = None) -> str:
    """Mean±standard deviation behind the mark of its difference to what it is compared with.

    Examples:
        >>> value_cell(Spread(0.5, 0.125, 10), 3), value_cell(None, 3)
        ('.500±.125', '–')
    """
    if spread is None:
        return NOTHING
    text = number(spread.mean, digits) + ("" if spread.std is None else f"±{number(spread.std, digits)}")
    return ("" if gap is None else gap.mark) + text


def printed_cell(table: str, key: tuple[str, ...], digits: int) -> str:
    """A cell of the paper."""
    return value_cell(Spread(*TABLES[table].cells[key], 0), digits)


# --- tables 2 and 3 ---------------------------------------------------------------------------------------------------


def conformal_table(results: Results, study: str) -> str:
    """Coverage of each label and number of groups, then its means, and what it costs."""
    sides = ["constant", "dirichlet", *RECIPES]
    labels = results.labels(study)

    def line(head: str, printed: list[str], *path: str | int) -> list[str]:
        series = [figures.conformal(results, study, side, *path) for side in sides]
        gaps = [figures.paired(one, series[1]) if side in RECIPES else None for side, one in zip(sides, series)]
        gaps = gaps if path[0] == "fsc" else [None] * len(sides)  # narrow is good, but not without coverage
        return [head, *printed, *(value_cell(Spread.of(one), 3, gap) for one, gap in zip(series, gaps))]

    rows = []
    for level in LEVELS:
        for place, name in enumerate(labels):
            printed = [printed_cell(study, (side, level, str(place)), 3) for side in ("dirichlet", "snefy")]
            rows.append(line(f"G={level}, {name}", printed, "fsc", level, place))
        means = []
        for side in ("dirichlet", "snefy"):
            cells = [cell[0] for key, cell in TABLES[study].cells.items() if key[:2] == (side, level)]
            means.append(number(sum(cells) / len(cells), 3))
        ceiling = Spread.of(results.series(study, "baseline", "ceiling", level))
        best = "" if ceiling is None else f" (at best {number(ceiling.mean, 3)})"
        rows.append(line(f"G={level}, mean{best}", means, "fsc", level))
    rows += [line(name.replace("_", " "), [NOTHING] * 2, name) for name in ("coverage", "width", "interval_score")]
    return markdown_table(["cell", "printed Dirichlet", "printed SNEFY", "featureless", "Dirichlet", *RECIPES], rows)


# --- tables 4 to 7 ----------------------------------------------------------------------------------------------------


def score_line(head: str, results: Results, study: str, place: tuple[str, ...], gaps: Gaps, *key: str) -> list[str]:
    """One row of scores, over all measures: ``place`` is the recipe and the path to them."""
    cells = []
    for metric in MEASURES:
        digits = 2 if metric == "log_likelihood" else 4
        cells.append(value_cell(Spread.of(results.series(study, *place, metric)), digits, gaps.get((*key, metric))))
    return [head, *cells]


def printed_line(head: str, study: str, *key: str) -> list[str]:
    """One row of the paper's scores."""
    return [head, *(printed_cell(study, (*key, metric), 4) for metric in METRICS), NOTHING]


def active_table(results: Results, study: str) -> str:
    """Scores after each query; the marks compare with Random."""
    rows = [printed_line(f"{name}, printed", study, name) for name in STRATEGIES]
    for recipe in results.recipes(study):
        for name in STRATEGIES:
            gaps = {} if name == "Random" else figures.query_gaps(results, study, recipe, name)
            rows.append(score_line(f"{name}, {recipe}", results, study, (recipe, "strategies", name), gaps))
        rows.append(score_line(f"before, {recipe}", results, study, (recipe, "start"), {}))
    return _scores(results, study, rows)


def ensemble_table(results: Results, study: str) -> str:
    """Scores of each learner's bags; the marks compare Weighted with Average."""
    rows = []
    for learner in (*LEARNERS, "LDL-LRR, alpha .001"):
        if learner in LEARNERS:
            rows += [
                printed_line(f"{learner}, {kind}, printed", study, learner, kind) for kind in ("Average", "Weighted")
            ]
        for recipe in results.recipes(study):
            if recipe == results.recipes(study)[0]:  # the members are the same
                place = (recipe, "learners", learner, "Average")
                rows.append(score_line(f"{learner}, Average", results, study, place, {}))
            gaps = figures.weighting_gaps(results, study, recipe)
            place = (recipe, "learners", learner, "Weighted")
            rows.append(score_line(f"{learner}, Weighted, {recipe}", results, study, place, gaps, learner))
    for recipe in results.recipes(study):
        rows.append(score_line(f"mean of the density, {recipe}", results, study, (recipe, "density"), {}))
    return _scores(results, study, rows)


def _scores(results: Results, study: str, rows: list[list[str]]) -> str:
    rows.append(score_line("featureless", results, study, ("baseline", "constant"), {}))
    return markdown_table(["cell", *map(str, MEASURES.values())], rows)


def ensemble_notes(results: Results, study: str) -> list[str]:
    """What the table does not show at first sight: learners that are one, and the density's own mean."""
    notes, recipe = [], "default"
    for learner in ("LDL-LRR", "LDL-LRR, alpha .001"):
        gaps = [
            abs(ours - theirs)
            for metric in METRICS
            for ours, theirs in zip(
                *(
                    figures.weighting(results, study, recipe, name, "Average", metric).values()
                    for name in (learner, "SA-BFGS")
                )
            )
        ]
        if gaps:
            notes.append(f"Average of {learner} and of SA-BFGS differ by at most {max(gaps):.1g}.")
        if gaps and max(gaps) < SAME and learner in LEARNERS:
            notes.append("So they are one learner here, and the verdict's 24 cells are 18 different ones.")
    means = {name: Spread.of(figures.weighting(results, study, recipe, name, "Weighted", "kl")) for name in LEARNERS}
    own = Spread.of(results.series(study, recipe, "density", "kl"))
    known = {name: spread.mean for name, spread in means.items() if spread}
    if own and known:
        best = min(known, key=known.__getitem__)
        word = "better" if own.mean < known[best] else "worse"
        notes.append(
            f"The default density's own mean (KL {number(own.mean, 4)}) is {word} than that of the best ensemble "
            f"({best}, {number(known[best], 4)})."
        )
    return notes


# --- figure A1 --------------------------------------------------------------------------------------------------------


def draw_figure(results: Results) -> bytes | None:
    """Figure A1 as the paper has it: coverage by each setting at G = 2 and 4, with the featureless Dirichlet's."""
    from matplotlib.figure import Figure

    recipes = results.recipes("figureA1")
    if not recipes:
        return None
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    axes = figure.subplots(2, 2, sharey=True)
    colours = dict(zip(RECIPES, ("tab:blue", "tab:orange", "tab:green", "tab:red")))
    for axis, (name, title) in zip(axes.flat, figures.PANELS.items()):
        for level, style in (("2", "-"), ("4", "--")):
            for recipe in recipes:
                settings = figures.panel_settings(results, name)
                spreads = [Spread.of(figures.panel(results, recipe, name, one, "fsc", level)) for one in settings]
                shown = [(int(one), spread) for one, spread in zip(settings, spreads) if spread]
                errors = [(spread.std or 0.0) / math.sqrt(spread.n) for _, spread in shown]
                places, means = [place for place, _ in shown], [spread.mean for _, spread in shown]
                label = f"{recipe}, G = {level}"
                axis.errorbar(places, means, errors, color=colours[recipe], ls=style, marker=".", label=label)
            plain = Spread.of(figures.conformal(results, "figureA1", "constant", "fsc", level))
            if plain is not None:
                axis.axhline(plain.mean, color="0.5", ls=style, lw=1, label=f"featureless, G = {level}")
        axis.set_xlabel(title)
    for axis in axes[:, 0]:
        axis.set_ylabel("FSC, mean over labels")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
    return stream.getvalue()


# --- the report -------------------------------------------------------------------------------------------------------

#: What each table shows.
HEADINGS = {
    "table2": "Conformal intervals",
    "table3": "Conformal intervals",
    "table4": "Active learning",
    "table5": "Active learning",
    "table6": "Ensembles",
    "table7": "Ensembles",
}


def build_section(results: Results, study: str) -> dict[str, Any]:
    """One table of the paper next to ours: heading, what is missing, the table, and what to read off it."""
    kind = HEADINGS[study]
    section: dict[str, Any] = {
        "name": f"Table {study[-1]}",
        "title": f"{kind}, {figures.DATASETS[TABLES[study].dataset]}",
        "notes": [f"Not run yet: `python -m reproduction {study}` adds it."],
        "caption": figures.WORDS["sections"][kind],
        "table": "",
    }
    if not results.repeats(study, "baseline") and not results.recipes(study):
        return section
    section["notes"] = _gaps_in_the_run(results, study)
    tables = {"Conformal intervals": conformal_table, "Active learning": active_table, "Ensembles": ensemble_table}
    section["table"] = tables[kind](results, study)
    if kind == "Ensembles":
        section["caption"] = " ".join([section["caption"], *ensemble_notes(results, study)])
    return section


def _gaps_in_the_run(results: Results, study: str) -> list[str]:
    """Recipes with fewer repeats than the paper has."""
    splits, notes = TABLES[study].splits, []
    for recipe in ("baseline", *RECIPES):
        done = len(results.repeats(study, recipe))
        if done < splits:
            notes.append(f"{done} of {splits} splits with {recipe}.")
    return notes


def dependent_claims(claims: list[figures.Claim]) -> list[str]:
    """Claims whose verdict is not the same with every recipe of the paper's model, and their verdicts."""
    lines = []
    for claim in claims:
        for case in claim.cases:
            words = {recipe: case.verdicts[recipe].word for recipe in PAPERS}
            words = {recipe: word for recipe, word in words.items() if word != figures.MISSING}
            if len(set(words.values())) > 1:
                said = ", ".join(f"{recipe}: {word}" for recipe, word in words.items())
                lines.append(f"{claim.title}, {case.name} ({said})")
    return lines


def grid_table() -> str:
    """How far each setting of what the paper leaves open is from the printed cells."""
    rows = []
    for name, distances in NEAREST.get("distances", {}).items():
        known = [distances[study] for study in TABLES if distances[study] is not None]
        mean = number(sum(known) / len(TABLES), 2)
        cells = [NOTHING if distances[study] is None else number(distances[study], 2) for study in TABLES]
        rows.append([f"`{name}`", mean if len(known) == len(TABLES) else f"over {mean}", *cells])
    return markdown_table(["setting", "mean", *(f"table {study[-1]}" for study in TABLES)], rows)


def write_report(folder: Path, page: Path | None = None) -> Path:
    """Read a run and write the report, ``reproduction.md`` and ``images/figure_a1.png``.

    Args:
        folder: What ``python -m reproduction`` wrote into: ``run.json`` and ``results/``. A run that has not finished
            is reported as far as it goes, and the text lists what is missing.
        page: Folder of the report; by default the same.

    Returns:
        The report.
    """
    folder, page = Path(folder), Path(page or folder)
    results = figures.load_results(folder)
    options: dict[str, Any] = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), **options)
    theirs, figure = figures.claims_of_the_paper(results), draw_figure(results)
    view = {
        "claims": theirs,
        "beyond": figures.claim_of_ours(results),
        "short": [summary_sentence(theirs, recipe) for recipe in RECIPES],
        "dependent": dependent_claims(theirs),
        "sections": [build_section(results, study) for study in HEADINGS],
        "choices": [(name, [options_of(recipe)[name] for recipe in PAPERS]) for name in figures.WORDS["choices"]],
        "words": figures.WORDS,
        "grid": grid_table(),
        "timings": timings(results),
        "run": results.run,
        "recipes": list(RECIPES),
        "papers": PAPERS,
        "level": f"{100 * figures.LEVEL:g} %",
        "has_figure": figure is not None,
    }
    if figure is not None:
        write_bytes(page / "images" / "figure_a1.png", figure)
    text = environment.get_template("reproduction.md.j2").render(view)
    write_bytes(page / "reproduction.md", (text.strip() + "\n").encode())
    return page / "reproduction.md"


def timings(results: Results) -> str:
    """How far each study has come with each recipe, and how long it took: repeats and seconds."""
    rows = []
    for study in STUDIES:
        cells = []
        for recipe in ("baseline", *RECIPES):
            records = results.repeats(study, recipe).values()
            cells.append(f"{len(records)}: {sum(one.seconds for one in records):.0f} s" if records else NOTHING)
        rows.append([f"`python -m reproduction {study}`", *cells])
    return markdown_table(["run again", "baseline", *RECIPES], rows)


def summary_sentence(claims: list[figures.Claim], recipe: str) -> str:
    """How the claims came out with a recipe, in one line."""
    counts = figures.tally(claims, recipe)
    return f"{recipe}: " + ", ".join(f"{count} {word}" for word, count in counts.items())
