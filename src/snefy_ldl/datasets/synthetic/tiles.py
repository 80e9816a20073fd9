"""Pictures of the made-up city: every tile shows a district's features, and the law behind it is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.datasets.synthetic.city import make_city_districts
from snefy_ldl.datasets.synthetic.data import SyntheticData
from snefy_ldl.errors import InputError

__all__ = ["draw_tiles", "make_city_tiles"]

#: Tiles drawn at a time.
BLOCK = 1000
#: Cells of houses along one side of a tile.
CELLS = 8
#: Bus lines that fit on a tile.
MOST_LINES = 16
BUS, STUDENT = (235, 40, 200), (255, 225, 40)


def make_city_tiles(
    n: int = 1000, size: int = 64, noise: float = 1.0, random_state: Any = 0, *, n_labels: int = 3
) -> tuple[NDArray[np.uint8], SyntheticData]:
    """Aerial pictures of city districts, and the districts themselves (:func:`make_city_districts`).

    A tile shows what the law depends on: the ground turns from green to grey toward the centre, blue cells are offices
    (the more floor, the brighter), each magenta line is a night bus, yellow dots are students, and roofs are the redder
    the higher the rent. Where cells, lines and dots lie is chance.

    Args:
        n: tiles.
        size: pixels along a side; a multiple of 8, at least 32.
        noise: of the law, as for the districts.
        random_state: seed or numpy Generator.
        n_labels: 3 to 6 uses of the city.

    Returns:
        Tiles (n, 3, size, size), 8-bit, and the districts with the law they were drawn from.

    Raises:
        InputError: A number is out of its range.

    Example:
        >>> tiles, city = make_city_tiles(5, size=32)
        >>> tiles.shape, tiles.dtype, city.D.shape
        ((5, 3, 32, 32), dtype('uint8'), (5, 3))
    """
    rng = np.random.default_rng(random_state)
    city = make_city_districts(n, noise, rng, n_labels=n_labels)
    return draw_tiles(city.X, size, rng), city


def draw_tiles(X: Array, size: int = 64, random_state: Any = 0) -> NDArray[np.uint8]:
    """Pictures of given districts.

    Args:
        X: features of the districts (N, 5), as :func:`make_city_districts` has them.
        size: pixels along a side; a multiple of 8, at least 32.
        random_state: seed or numpy Generator.

    Returns:
        Tiles (N, 3, size, size), 8-bit.

    Raises:
        InputError: The size does not fit.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> draw_tiles(make_city_districts(2).X, 32).shape
        (2, 3, 32, 32)
    """
    if check_count("size", size, low=32) % CELLS:
        raise InputError(f"size must be a multiple of {CELLS}; got {size}.")
    rng = np.random.default_rng(random_state)
    tiles = np.empty((len(X), size, size, 3), dtype=np.uint8)
    for start in range(0, len(X), BLOCK):
        tiles[start : start + BLOCK] = _draw(X[start : start + BLOCK], size, rng)
    return np.ascontiguousarray(tiles.transpose(0, 3, 1, 2))


def _draw(X: Array, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    distance, offices, students, buses, rent = X.T
    n, cell = len(X), size // CELLS
    central = np.exp(-distance / 4.0)[:, None, None, None]
    green, grey = np.array([60.0, 140.0, 60.0]), np.array([150.0, 150.0, 145.0])
    picture = green + central * (grey - green) + rng.normal(0.0, 6.0, (n, size, size, 1))
    # houses and offices: cells with a border of ground around them
    order = rng.random((n, CELLS * CELLS)).argsort(1).reshape(n, CELLS, CELLS)
    floor = np.clip((np.log10(np.maximum(offices, 1.0)) - 3.0) / 3.0, 0.0, 1.1)[:, None, None]  # 1e3 m² to 1e6 m²
    kind = np.where(order < 12, 2, np.where(order < 12 + 16 + 16 * central[..., 0], 1, 0))
    cells = np.zeros((n, CELLS, CELLS, 3))
    roof = np.clip((rent[:, None, None] - 6.0) / 26.0, 0.0, 1.0)
    cells[..., 0] = np.where(kind == 2, 30.0, 110.0 + 130.0 * roof)
    cells[..., 1] = np.where(kind == 2, 40.0 + 60.0 * floor, 85.0)
    cells[..., 2] = np.where(kind == 2, 60.0 + 175.0 * floor, 70.0)
    inside = np.zeros((cell, cell), dtype=bool)
    inside[1 : cell - 1, 1 : cell - 1] = True
    built = np.kron(kind > 0, inside[None]).astype(bool).reshape(n, size, size)
    picture = np.where(built[..., None], cells.repeat(cell, 1).repeat(cell, 2), picture)
    # night buses: one horizontal line each, at distinct heights
    gap = size // MOST_LINES
    run = rng.random((n, MOST_LINES)).argsort(1) < np.minimum(buses, MOST_LINES)[:, None]  # (n, places)
    lines = np.zeros((n, size), dtype=bool)
    lines[:, gap // 2 : gap * MOST_LINES : gap] = run
    picture = np.where(lines[:, :, None, None], np.array(BUS, dtype=np.float64), picture)
    # students: dots at distinct pixels
    dots = np.round(0.08 * size * size * np.tanh(students / 1500.0)).astype(np.intp)
    chance = rng.random((n, size * size))
    level = np.take_along_axis(np.sort(chance, 1), np.maximum(dots - 1, 0)[:, None], 1)
    dotted = ((chance <= level) & (dots > 0)[:, None]).reshape(n, size, size)
    picture = np.where(dotted[..., None], np.array(STUDENT, dtype=np.float64), picture)
    return np.clip(picture.round(), 0, 255).astype(np.uint8)
