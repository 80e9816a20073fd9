"""The picture of the house shows the code as it is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx as nx
import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    specification = importlib.util.spec_from_file_location("make_architecture", DOCS / "make_architecture.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(maker: ModuleType) -> dict[str, Any]:
    return maker.architecture()


def test_the_picture_is_up_to_date(data: dict[str, Any]) -> None:
    drawn = json.loads((DOCS / "images" / "architecture.json").read_text(encoding="utf-8"))
    assert drawn == data, "run: python docs/make_architecture.py"


def test_every_room_and_step_is_described(maker: ModuleType, data: dict[str, Any]) -> None:
    assert set(data["rooms"]) <= set(maker.ROOMS)
    for way, rooms in data["ways"].items():
        assert set(rooms) <= set(maker.STEPS[way])


def test_what_is_drawn_says_all_imports(maker: ModuleType, data: dict[str, Any]) -> None:
    graph = maker.import_graph()
    drawn = nx.DiGraph([tuple(edge) for edge in data["imports"]])
    assert all(nx.has_path(drawn, a, b) for a, b in graph.edges)
    floors = maker.floors_of(graph)
    assert all(floors[a] > floors[b] for a, b in graph.edges)


def test_arrows_pass_no_box(maker: ModuleType, data: dict[str, Any]) -> None:
    graph = nx.DiGraph([tuple(edge) for edge in data["imports"]])
    widths = dict.fromkeys(graph, 1.5)
    x, floor, paths = maker.arrange(graph, widths)
    for path in paths:
        for point in path[1:-1]:
            others = [room for room in graph if floor[room] == floor[point]]
            assert all(abs(x[room] - x[point]) > widths[room] / 2 for room in others)
