"""Pictures whose label distribution is known: the features can be read off them."""

from __future__ import annotations

import numpy as np
import pytest

from snefy_ldl.datasets import make_city_tiles
from snefy_ldl.datasets.synthetic import BUS, MOST_LINES, STUDENT
from snefy_ldl.errors import InputError


def pixels(tiles, colour):
    return (tiles == np.array(colour, dtype=np.uint8)[None, :, None, None]).all(1)


@pytest.mark.parametrize("size", [32, 64])
def test_features_can_be_read_off_a_tile(size):
    tiles, city = make_city_tiles(200, size=size, random_state=1)
    np.testing.assert_array_equal(pixels(tiles, BUS).any(2).sum(1), np.minimum(city.X[:, 3], MOST_LINES))
    dots = pixels(tiles, STUDENT).sum((1, 2))
    np.testing.assert_array_equal(dots, np.round(0.08 * size * size * np.tanh(city.X[:, 2] / 1500.0)))
    ground = tiles[:, 0].astype(float).mean((1, 2))
    assert np.corrcoef(ground, np.exp(-city.X[:, 0] / 4.0))[0, 1] > 0.5
    blue = np.percentile(tiles[:, 2].reshape(200, -1), 90, axis=1).astype(float)
    assert np.corrcoef(blue, np.log(city.X[:, 1]))[0, 1] > 0.3


def test_a_seed_gives_the_same_tiles():
    tiles = [make_city_tiles(3, 32, random_state=seed)[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(tiles[0], tiles[1])
    assert (tiles[0] != tiles[2]).any()
    with pytest.raises(InputError, match="multiple of 8"):
        make_city_tiles(3, 33)
