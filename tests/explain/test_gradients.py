"""Input gradients against finite differences, and their pictures."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import torch
from torch import nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from snefy_ldl import Backbone, SnefyLDL
from snefy_ldl.errors import InputError
from snefy_ldl.explain import input_gradients
from snefy_ldl.plots import pixel_gradients

RNG = np.random.default_rng(0)
IMAGES = RNG.random((60, 1, 3, 3))
SHARES = RNG.dirichlet([1.0, 2.0, 3.0], 60)
SMALL = {"n_neurons": 6, "n_readouts": 3, "epochs": 5, "random_state": 0, "device": "cpu"}


class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(9, 8).double()

    def forward(self, x):
        return torch.tanh(2.0 * self.layer(x.flatten(1).double())).float()


@pytest.fixture(scope="module")
def model():
    return SnefyLDL(backbone=Smooth(), n_members=2, **SMALL).fit(IMAGES, SHARES)


@pytest.mark.parametrize("of", ["mean", "width"])
@pytest.mark.parametrize("label", [0, "label_2"])
def test_gradients_are_finite_differences(model, of, label):
    got = input_gradients(model, IMAGES[:2], label, of, confidence_level=0.8)
    number = 0 if label == 0 else 2

    def value(images):
        if of == "mean":
            return model.predict(images)[:, number]
        ends = model.predict_interval(images, 0.8)[:, number]
        return ends[:, 1] - ends[:, 0]

    step, expected = 2e-2, np.zeros((2, 9))
    for pixel in range(9):
        away = np.zeros(9)
        away[pixel] = step
        away = away.reshape(1, 1, 3, 3)
        expected[:, pixel] = (value(IMAGES[:2] + away) - value(IMAGES[:2] - away)) / (2 * step)
    np.testing.assert_allclose(got.reshape(2, 9), expected, atol=2e-2 * np.abs(expected).max())
    assert np.abs(expected).max() > 1e-3


def test_bytes_are_shares_of_255(model):
    whole = (IMAGES[:3] * 255).round()
    np.testing.assert_allclose(
        input_gradients(model, whole.astype(np.uint8), 1), input_gradients(model, whole / 255.0, 1), rtol=1e-5
    )


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(128, 6)

    def forward(self, ids):
        return self.table(ids).sum(1)


def spell(texts):
    ids = [torch.tensor([ord(letter) for letter in text]) for text in texts]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True)


def test_words_count_by_what_they_bring():
    texts = ["".join(RNG.choice(list("abc"), RNG.integers(2, 6))) for _ in range(60)]
    fitted = SnefyLDL(backbone=Backbone(Words(), collate=spell), **SMALL).fit(texts, SHARES)
    moved = input_gradients(fitted, texts, 0)
    assert moved.shape == (60, max(map(len, texts)))
    table = fitted.net_.backbone.copies[0].table
    with torch.no_grad():
        before = fitted.predict(["ab"])[0, 0]
        kept = table.weight[ord("b")].clone()
        table.weight[ord("b")] *= 0.99  # a hundredth of the word is taken away
        after = fitted.predict(["ab"])[0, 0]
        table.weight[ord("b")] = kept
    assert input_gradients(fitted, ["ab"], 0)[0, 1] == pytest.approx(100.0 * (before - after), rel=0.05)


@pytest.mark.slow
def test_what_cannot_be_explained_is_told(model):
    with pytest.raises(InputError, match="backbone"):
        input_gradients(SnefyLDL(**SMALL).fit(IMAGES.reshape(60, 9), SHARES), IMAGES, 0)
    with pytest.raises(InputError, match="mean"):
        input_gradients(model, IMAGES, 0, of="mode")
    with pytest.raises(InputError, match="label"):
        input_gradients(model, IMAGES, "zzz")


def test_pictures(tmp_path, model):
    gradient = input_gradients(model, IMAGES[:1], 0)
    ax = pixel_gradients(IMAGES[0], gradient[0], title="share")
    assert len(ax.images) == 2
    np.testing.assert_allclose(ax.images[1].get_array(), gradient[0].sum(0))
    ax.figure.savefig(tmp_path / "pixels.png")
    with pytest.raises(InputError, match="alike"):
        pixel_gradients(IMAGES[0], gradient[0, 0])
    plt.close("all")
