"""
Which pixels matter?
====================

The pixels that change the share of entertainment, on a synthetic tile of a city.
"""

from torch import nn

from snefy_ldl import Backbone, SnefyLDL, plots
from snefy_ldl.datasets import make_city_tiles
from snefy_ldl.explain import input_gradients

tiles, city = make_city_tiles(120, size=32)
cnn = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 16), nn.ReLU()
)
model = SnefyLDL(backbone=Backbone(cnn, learning_rate=3e-3), epochs=4, random_state=0).fit(tiles, city.D)
moved = input_gradients(model, tiles[:1], 1)
plots.pixel_gradients(tiles[0], moved[0], title="what moves the share of entertainment")
