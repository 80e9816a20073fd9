"""Draw docs/images/architecture.png from the import graph: the rooms of the house, and a row's way through them.

    python docs/make_architecture.py

The same figures go to docs/images/architecture.json, and a test compares that file with the code. Rooms and imports
come from the import graph, the ways of a row from a small fit that is watched while it runs. Only what a room is for
is written here by hand.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

import grimp
import networkx as nx
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path as Curve
from scipy.optimize import LinearConstraint, minimize

import snefy_ldl
from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts

SOURCE = Path(snefy_ldl.__file__).parent
IMAGES = Path(__file__).parent / "images"
#: The modules below every room: exceptions, aliases, seeds, budgets.
GROUND = "errors"
#: What each room is for, and its storey.
ROOMS = {
    "cli": ("one file a command", "doors"),
    "doors": ("other runtimes and libraries", "doors"),
    "serve": ("service and explorer page", "doors"),
    "engines": ("where rows are worked on", "doors"),
    "experiments": ("the paper's studies and their report", "doors"),
    "plots": ("pictures in one style", "doors"),
    "reporting": ("a model's figures on known rows", "uses"),
    "explain": ("effects and dependence", "uses"),
    "votes": ("annotators and where they agree", "uses"),
    "active": ("which rows to label next", "uses"),
    "conformal": ("intervals with a guarantee", "uses"),
    "comparison": ("learners side by side", "doors"),
    "pipeline": ("steps before the estimator", "uses"),
    "ensemble": ("bagging weighted by density", "uses"),
    "classification": ("one label out of a law", "uses"),
    "enhancement": ("shares out of single labels", "uses"),
    "supervision": ("few labels, or noisy ones", "uses"),
    "learners": ("the other LDL algorithms", "uses"),
    "guides": ("quick learners as inputs", "learning"),
    "synthetic": ("data whose law is known", "data"),
    "datasets": ("named sets, tables, votes", "data"),
    "metrics": ("points, intervals, draws", "data"),
    "tuning": ("settings by validation", "learning"),
    "many": ("many fits in one computation", "learning"),
    "estimator": ("SnefyLDL, the scikit-learn shell", "learning"),
    "prediction": ("questions to any density", "learning"),
    "persistence": ("fitted states and folders", "learning"),
    "training": ("plan, objectives, kernels, loop", "learning"),
    "networks": ("from x to the law's offsets", "density"),
    "distributions": ("the law, and every question to it", "density"),
    "special": ("log Γ, pair tables, every epsilon", "density"),
    "inputs": ("tables and objects, made readable", "ground"),
    "validation": ("one clear error before any work", "ground"),
    "files": ("written whole or not at all", "ground"),
    GROUND: ("exceptions, aliases, seeds, budgets", "ground"),
}
#: What happens to a row in each room it enters, by the way it takes.
STEPS = {
    "fit(X, D)": {
        "estimator": "takes the rows, keeps what training returns",
        "validation": "checks every cell; zeros get their policy",
        "inputs": "text, dates and gaps become numbers",
        "training": "splits, batches, objective, loop, best epoch",
        "networks": "scaling, starting points, the network itself",
        "distributions": "the law whose likelihood is raised",
        "special": "log B(α_ij) and its slope, once a step",
        "persistence": "holds the fitted state; goes to a folder and back",
        "learners": "quick learners whose answers are inputs",
        "guides": "quick learners whose answers are inputs",
        "files": "a checkpoint, where one is wanted",
        "prediction": "the questions every density answers",
    },
    "predict_interval(X)": {
        "estimator": "hands rows on, a block at a time",
        "prediction": "two quantiles of each label's share",
        "validation": "the same features as in fit, all finite",
        "inputs": "the columns read as the fit read them",
        "networks": "offsets of each neuron for each row",
        "special": "the pair table, shared by all rows",
        "distributions": "cdfs on a grid, one product a block, inverted",
        "training": "rows in the form the network takes",
        "guides": "the quick learners' answers for these rows",
        "persistence": "holds the fitted state; goes to a folder and back",
        "learners": "the quick learners' answers for these rows",
    },
}


# --- what is drawn ----------------------------------------------------------------------------------------------------


def room_of(module: str) -> str | None:
    """The room a module stands in; None for the package itself and for modules that only forward names."""
    name = module.partition(".")[2].partition(".")[0]
    if not name or name == "__main__" or _only_forwards(SOURCE / f"{name}.py"):
        return None
    return GROUND if name.startswith("_") else name


def _only_forwards(file: Path) -> bool:
    """Whether a loose module holds nothing but imports: the old path of something that moved."""
    if not file.is_file() or file.stem.startswith("_"):
        return False
    kinds = (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign)
    return all(isinstance(node, kinds) for node in ast.parse(file.read_text(encoding="utf-8")).body)


def import_graph() -> nx.DiGraph:
    """Rooms, and an edge from each to those it imports from."""
    modules, rooms = grimp.build_graph("snefy_ldl", cache_dir=None), nx.DiGraph()
    for module in modules.modules:
        room = room_of(module)
        if room is None:
            continue
        rooms.add_node(room)
        for imported in modules.find_modules_directly_imported_by(module):
            if (other := room_of(imported)) not in (None, room):
                rooms.add_edge(room, other)
    return rooms


def watch(work: Callable[[], Any]) -> list[str]:
    """Rooms in the order in which a call first enters them; the ground is everywhere and left out."""
    entered: dict[str, None] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(SOURCE)) and frame.f_code.co_name != "<module>":
            room = room_of("snefy_ldl." + ".".join(Path(file).relative_to(SOURCE).with_suffix("").parts))
            if room not in (None, GROUND):
                entered[str(room)] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return list(entered)


def architecture() -> dict[str, Any]:
    """Everything in the picture: rooms, imports that no longer way round states already, and two ways of a row."""
    city, model = make_city_districts(n=60), SnefyLDL(epochs=1, random_state=0)
    graph = import_graph()
    return {
        "rooms": sorted(graph),
        "imports": sorted([a, b] for a, b in nx.transitive_reduction(graph).edges),
        "ways": {
            "fit(X, D)": watch(lambda: model.fit(city.X, city.D)),
            "predict_interval(X)": watch(lambda: model.predict_interval(city.X)),
        },
    }


# --- where it is drawn ------------------------------------------------------------------------------------------------


def floors_of(graph: nx.DiGraph) -> dict[str, int]:
    """The floor of each room: one above the highest room it imports from."""
    floor: dict[str, int] = {}
    for room in reversed(list(nx.lexicographical_topological_sort(graph))):
        floor[room] = 1 + max((floor[other] for other in graph[room]), default=-1)
    return floor


def arrange(graph: nx.DiGraph, widths: dict[str, float]) -> tuple[dict[Any, float], dict[Any, int], list[list[Any]]]:
    """Places side by side (x), floors, and each import as the points its arrow passes.

    An arrow that passes a floor takes up room on it, so that it crosses no box: a point (importer, imported, floor).
    """
    floor: dict[Any, int] = dict(floors_of(graph))
    paths = []
    for a, b in sorted(graph.edges):
        between = [(a, b, level) for level in range(floor[a] - 1, floor[b], -1)]
        floor |= {point: point[2] for point in between}
        paths.append([a, *between, b])
    links = [(u, v) for path in paths for u, v in pairwise(path)]
    near: dict[Any, list[Any]] = {point: [] for point in floor}
    for u, v in links:
        near[u].append(v)
        near[v].append(u)
    rows = [[point for point in floor if floor[point] == level] for level in range(max(floor.values()) + 1)]
    place = {point: float(k - len(row) / 2) for row in rows for k, point in enumerate(row)}
    for sweep in range(60):
        for level in range(len(rows)) if sweep % 2 else reversed(range(len(rows))):
            side = [point for point in rows[level] if near[point]]
            mean = {p: float(np.mean([place[q] for q in near[p]])) for p in side}
            rows[level].sort(key=lambda p: mean.get(p, place[p]))
            place |= {p: k - len(rows[level]) / 2 for k, p in enumerate(rows[level])}
    points = [point for row in rows for point in row]
    index = {point: k for k, point in enumerate(points)}
    pairs = [(p, q) for row in rows for p, q in pairwise(row)]
    half = [0.5 * (widths.get(p, 0.0) + widths.get(q, 0.0)) + 0.2 for p, q in pairs]
    order = np.zeros((len(pairs), len(points)))
    for k, (p, q) in enumerate(pairs):
        order[k, index[q]], order[k, index[p]] = 1.0, -1.0
    pull = np.zeros((len(links), len(points)))
    for k, (u, v) in enumerate(links):
        straight = 3.0 if isinstance(u, tuple) and isinstance(v, tuple) else 1.0
        pull[k, index[u]], pull[k, index[v]] = straight, -straight
    quadratic = pull.T @ pull + 1e-3 * np.eye(len(points))
    start = np.concatenate([np.cumsum([widths.get(p, 0.0) + 0.2 for p in row]) for row in rows])
    best = minimize(
        lambda x: 0.5 * x @ quadratic @ x,
        start,
        jac=lambda x: quadratic @ x,
        method="SLSQP",
        constraints=[LinearConstraint(order, half, np.inf)] if pairs else [],
        options={"maxiter": 500},
    )
    return {point: float(best.x[index[point]]) for point in points}, floor, paths


# --- drawing ----------------------------------------------------------------------------------------------------------

STOREYS = {"doors": "#e6dff1", "uses": "#fbe3cf", "learning": "#d9ecd6", "data": "#fbf3c4", "density": "#d5e5f5"}
STOREYS["ground"] = "#e6e6e6"
COLOURS = {"fit(X, D)": "#1f5fa8", "predict_interval(X)": "#b3410e"}
BOX_HEIGHT, FLOOR_HEIGHT = 0.66, 1.0
#: The ways of a row stand below the house, a step a line.
STEP_HEIGHT = 0.4


def draw(data: dict[str, Any]) -> Any:
    """The picture: rooms with their imports, and below them the two ways of a row; a unit is an inch."""
    graph = nx.DiGraph([tuple(edge) for edge in data["imports"]])
    words = {room: wrap(ROOMS[room][0], 20) for room in graph}
    widths = {room: 0.068 * max(1.2 * len(room) + 2, *map(len, words[room])) + 0.2 for room in graph}
    x, floor, paths = arrange(graph, widths)
    left = min(x[room] - widths[room] / 2 for room in graph) - 0.2
    right = max(max(x.values()), *(x[room] + widths[room] / 2 for room in graph)) + 0.2
    top = max(floor.values()) * FLOOR_HEIGHT + BOX_HEIGHT + 0.2
    bottom = -1.15 - STEP_HEIGHT * max(map(len, data["ways"].values()))
    figure = Figure(figsize=(right - left, top - bottom))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    for path in paths:
        _arrow(axes, path, x, floor)
    for room in graph:
        _box(axes, room, words[room], x[room], floor[room] * FLOOR_HEIGHT, widths[room])
    for k, (way, rooms) in enumerate(data["ways"].items()):
        for number, room in enumerate(rooms, 1):
            corner = x[room] + (widths[room] / 2 if k else -widths[room] / 2)
            _badge(axes, corner, floor[room] * FLOOR_HEIGHT + BOX_HEIGHT, number, COLOURS[way])
        _way(axes, way, rooms, left + 0.4 + k * 0.5 * (right - left))
    return figure


def _box(axes: Any, room: str, words: list[str], x: float, y: float, width: float) -> None:
    shape = "round,pad=0,rounding_size=0.08"
    colour = STOREYS[ROOMS[room][1]]
    outline = {"facecolor": colour, "edgecolor": "#555555", "linewidth": 0.8, "zorder": 3}
    axes.add_patch(FancyBboxPatch((x - width / 2, y), width, BOX_HEIGHT, boxstyle=shape, **outline))
    axes.text(x, y + BOX_HEIGHT - 0.15, room, ha="center", va="center", fontsize=10, weight="bold", zorder=4)
    axes.text(x, y + 0.23, "\n".join(words), ha="center", va="center", fontsize=8, linespacing=1.05, zorder=4)


def _arrow(axes: Any, path: list[Any], x: dict[Any, float], floor: dict[Any, int]) -> None:
    """A smooth line from the importer's floor to the imported room's roof."""
    heights = [floor[point] * FLOOR_HEIGHT for point in path]
    stops = [(x[path[0]], heights[0])]
    for point, height in zip(path[1:-1], heights[1:-1]):
        stops += [(x[point], height + BOX_HEIGHT), (x[point], height)]
    stops.append((x[path[-1]], heights[-1] + BOX_HEIGHT + 0.03))
    codes, points = [Curve.MOVETO], [stops[0]]
    for (x0, y0), (x1, y1) in pairwise(stops):
        middle = 0.5 * (y0 + y1)
        codes += [Curve.CURVE4] * 3
        points += [(x0, middle), (x1, middle), (x1, y1)]
    axes.add_patch(PathPatch(Curve(points, codes), fill=False, edgecolor="#9a9a9a", linewidth=1.0, zorder=1))
    axes.plot(*stops[-1], marker="v", markersize=5, color="#777777", zorder=2)


def _badge(axes: Any, x: float, y: float, number: int, colour: str) -> None:
    axes.plot(x, y, "o", markersize=12, color=colour, markeredgecolor="white", zorder=5)
    axes.text(x, y - 0.008, str(number), ha="center", va="center", fontsize=8, color="white", weight="bold", zorder=6)


def _way(axes: Any, way: str, rooms: list[str], left: float) -> None:
    axes.text(left - 0.1, -0.55, way, fontsize=11, weight="bold", color=COLOURS[way], va="center")
    heights = [-0.55 - STEP_HEIGHT * number for number in range(1, len(rooms) + 1)]
    axes.plot([left] * 2, [heights[0], heights[-1]], color=COLOURS[way], linewidth=2, zorder=1)
    for number, (room, y) in enumerate(zip(rooms, heights), 1):
        _badge(axes, left, y, number, COLOURS[way])
        axes.text(left + 0.2, y + 0.08, room, fontsize=9, weight="bold", va="center")
        axes.text(left + 0.2, y - 0.09, STEPS[way][room], fontsize=8, va="center")


def main() -> None:
    """Write the picture and the figures in it."""
    data = architecture()
    draw(data).savefig(IMAGES / "architecture.png", dpi=130)
    text = json.dumps(data, indent=1)
    (IMAGES / "architecture.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(data['rooms'])} rooms, {len(data['imports'])} imports: {IMAGES / 'architecture.png'}")


if __name__ == "__main__":
    main()
