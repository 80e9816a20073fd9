"""Backbones of the user's own: what fit and every question take, and how they train."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from snefy_ldl import Backbone, SnefyLDL
from snefy_ldl.active import query
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.errors import InputError, TrainingError
from snefy_ldl.training.policy import Schedule
from snefy_ldl.training.steps import make_optimizer

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 1, 6, 6), dtype=np.uint8)
SHARES = RNG.dirichlet(np.ones(3), 60)
VOTES = RNG.multinomial(9, SHARES)
SMALL = {"n_neurons": 6, "n_readouts": 3, "epochs": 3, "batch_size": 16, "random_state": 0, "device": "cpu"}


def cnn():
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 8))


def model(module=None, **changes):
    settings = {key: changes.pop(key) for key in list(changes) if key in SMALL or key in ("n_members", "patience")}
    if "checkpoint_dir" in changes:
        settings["checkpoint_dir"] = changes.pop("checkpoint_dir")
    backbone = Backbone(module or cnn(), **({"learning_rate": 1e-3} | changes))
    return SnefyLDL(backbone=backbone, **(SMALL | settings))


class Pairs(Dataset):
    def __init__(self, labels=SHARES):
        self.table = labels

    def __len__(self):
        return 60

    def __getitem__(self, row):
        return torch.as_tensor(IMAGES[row]), self.table[row]


# -- what fit takes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        torch.as_tensor(IMAGES),
        IMAGES.astype(np.float64) / 255.0,
        Pairs(),
        DataLoader(Pairs(), batch_size=7),
        TensorDataset(torch.as_tensor(IMAGES), torch.as_tensor(SHARES)),
    ],
    ids=["tensor", "float64", "dataset", "loader", "tensor dataset"],
)
def test_every_container_fits_the_same_model(source):
    expected = model().fit(IMAGES, SHARES)
    labels = None if isinstance(source, (Dataset, DataLoader)) else SHARES
    fitted = model().fit(source, labels)
    np.testing.assert_allclose(fitted.predict(source), expected.predict(IMAGES), rtol=1e-4, atol=1e-5)
    assert fitted.training_["reads"].startswith(("uint8 (rows, 1, 6, 6)", "float64 (rows, 1, 6, 6)"))


class Texts(nn.Module):
    """Mean of the letters' embeddings."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.letters = nn.Embedding(128, 8)

    def forward(self, ids, mask):
        return (self.letters(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def spell(texts):
    ids = [torch.tensor([ord(letter) for letter in text]) for text in texts]
    padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return {"ids": padded, "mask": (padded > 0).float()}


WORDS = ["".join(RNG.choice(list("abcdef"), RNG.integers(1, 9))) for _ in range(60)]


def test_texts_with_collate_and_keywords(tmp_path):
    fitted = model(Texts(), collate=spell).fit(WORDS, SHARES)
    mean = fitted.predict(WORDS)
    np.testing.assert_allclose(fitted.predict(np.array(WORDS)), mean)
    np.testing.assert_allclose(fitted.predict(WORDS[3:5]), mean[3:5], rtol=1e-6)
    fitted.save(tmp_path / "texts")
    again = SnefyLDL.load(tmp_path / "texts", backbone=Backbone(Texts(), collate=spell))
    np.testing.assert_array_equal(again.predict(WORDS), mean)
    encoded = spell(WORDS)
    np.testing.assert_allclose(model(Texts()).fit(encoded, SHARES).predict(encoded), mean, rtol=1e-4)


def test_the_output_of_a_hugging_face_model_is_averaged_over_tokens():
    class Output:
        def __init__(self, hidden):
            self.last_hidden_state = hidden

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 4)

        def forward(self, input_ids=None, attention_mask=None, **more):
            return Output(self.embedding(input_ids))

    short = {"input_ids": torch.tensor([[1, 2]] * 8), "attention_mask": torch.ones(8, 2, dtype=torch.long)}
    long = {"input_ids": torch.tensor([[1, 2, 7]] * 8), "attention_mask": torch.tensor([[1, 1, 0]] * 8)}
    fitted = model(Model(), epochs=1).fit(short, SHARES[:8])
    np.testing.assert_allclose(fitted.predict(long), fitted.predict(short), rtol=1e-6)


# -- what else takes it ------------------------------------------------------------------------------------------------


def test_questions_take_data_sets_and_texts():
    rows = Pairs()
    fitted = model().fit(rows)
    direct = model().fit(IMAGES, SHARES)
    for one in (fitted, direct):  # all are to calibrate on the rows they know
        one.model_ = replace(one.model_, seen=None)
    expected = ConformalIntervals(direct).conformalize(IMAGES, SHARES).predict_interval(IMAGES)
    got = ConformalIntervals(fitted).conformalize(rows).predict_interval(rows)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
    chosen = query("entropy", rows, 4, fitted, random_state=0)
    np.testing.assert_array_equal(chosen, query("entropy", IMAGES, 4, direct, random_state=0))
    words = model(Texts(), collate=spell).fit(WORDS, SHARES)
    words.model_ = replace(words.model_, seen=None)
    assert len(query("entropy", WORDS, 3, words)) == 3
    assert ConformalIntervals(words).conformalize(WORDS, SHARES).predict_interval(WORDS).shape == (60, 3, 2)
    words.partial_fit(WORDS[:20], SHARES[:20])
    assert words.sample(WORDS[:2], 4).shape == (4, 2, 3)


def test_wrong_input_is_one_sentence():
    fitted = model().fit(IMAGES, SHARES)
    with pytest.raises(InputError, match=r"Sequential reads uint8 \(rows, 1, 6, 6\); got float32 \(rows, 6, 6, 3\)"):
        fitted.predict(np.zeros((4, 6, 6, 3), dtype=np.float32))
    with pytest.raises(InputError, match=r"Texts takes Texts.forward\(ids, mask\); got a list of str"):
        model(Texts()).fit(WORDS, SHARES)
    with pytest.raises(InputError, match="fit needs the labels"):
        model().fit(IMAGES)
    with pytest.raises(InputError, match="rows"):
        model().fit(IMAGES[:50], SHARES)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"freeze_epochs": -1}, "freeze_epochs"),
        ({"clip": 0.0}, "clip"),
        ({"workers": 0.5}, "workers"),
        ({"collate": 3}, "collate"),
        ({"mixed_precision": "fp8"}, "mixed_precision"),
    ],
)
def test_wrong_settings_are_told(setting, message):
    with pytest.raises(InputError, match=message):
        Backbone(cnn(), **setting)
    with pytest.raises(InputError, match="Module"):
        Backbone(3)


# -- how it trains -----------------------------------------------------------------------------------------------------


def weights(fitted, member=0):
    return {name: value.clone() for name, value in fitted.net_.backbone.copies[member].state_dict().items()}


def test_own_rate_and_decay():
    fitted = model(learning_rate=3e-4, weight_decay=0.2).fit(IMAGES, SHARES)
    optimizer = make_optimizer(fitted.net_, Schedule(1, 1, 5e-3, weight_decay=1.0))
    places = {id(p): (rate, decay) for params, rate, decay in optimizer.groups for p in params}
    copies = dict(fitted.net_.backbone.copies.named_parameters())
    assert {places[id(p)] for p in copies.values() if p.dim() > 1} == {(3e-4, 0.2)}
    assert {places[id(p)] for p in copies.values() if p.dim() == 1} == {(3e-4, 0.0)}
    assert places[id(fitted.net_.head_weight)][0] == 5e-3
    assert len(places) == len(list(fitted.net_.parameters()))


def test_frozen_epochs_leave_everything_as_it_was():
    start = cnn().state_dict()
    frozen = weights(model(freeze_epochs=3).fit(IMAGES, SHARES))
    assert all(torch.equal(frozen[name], start[name]) for name in start), "statistics of the batches, too"
    thawed = model(freeze_epochs=1).fit(IMAGES, SHARES)
    assert not torch.equal(weights(thawed)["0.weight"], start["0.weight"])
    assert all(parameter.requires_grad for parameter in thawed.net_.parameters())


def test_gradients_are_clipped():
    norms = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(36, 6)

        def forward(self, x):
            return 100.0 * self.layer(x.flatten(1))

    fitted = model(Watched(), clip=1e-3, epochs=1)
    original = torch.nn.utils.clip_grad_norm_

    def watch(parameters, limit):
        parameters = list(parameters)
        before = original(parameters, limit)
        norms.append((float(before), float(torch.stack([p.grad.norm() for p in parameters]).norm()), limit))
        return before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", watch)
        fitted.fit(IMAGES, SHARES)
    assert norms
    assert all(after <= limit * 1.001 < before for before, after, limit in norms)


def test_members_have_backbones_of_their_own(tmp_path):
    fitted = model(n_members=3).fit(IMAGES, SHARES)
    assert len(fitted.net_.backbone.copies) == 3
    dist = fitted.predict_dist(IMAGES)
    assert dist.n_members == 3
    assert not torch.equal(dist.exponents[0], dist.exponents[1])
    again = SnefyLDL.load(fitted.save(tmp_path / "model"), backbone=Backbone(cnn()))
    np.testing.assert_array_equal(again.predict(IMAGES), fitted.predict(IMAGES))


class Dropping(nn.Module):
    """Dropout, and statistics of the batches: what a resumed fit must get right."""

    def __init__(self, stop_after=None):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.calls, self.stop_after = 0, stop_after

    def extra_repr(self):
        return ""

    def forward(self, x):
        if self.training:
            self.calls += 1
            if self.stop_after is not None and self.calls > self.stop_after:
                raise KeyboardInterrupt
        return self.layers(x)


@pytest.mark.parametrize("source", ["array", "dataset"])
def test_a_killed_fit_goes_on_to_the_same_bits(tmp_path, source):
    def run(stop_after, folder):
        settings = {"epochs": 4, "checkpoint_dir": folder, "freeze_epochs": 1, "n_members": 2}
        one = model(Dropping(stop_after), **settings)
        return one.fit(IMAGES, SHARES) if source == "array" else one.fit(Pairs())

    whole = run(None, None)
    with pytest.raises(KeyboardInterrupt):
        run(6, tmp_path)  # four steps an epoch, the first of them in evaluation mode
    resumed = run(None, tmp_path)
    np.testing.assert_array_equal(resumed.predict(IMAGES), whole.predict(IMAGES))
    with pytest.raises(TrainingError, match="belongs to other data or settings"):
        model(Dropping(), epochs=4, checkpoint_dir=tmp_path, freeze_epochs=2, n_members=2).fit(IMAGES, SHARES)


def test_workers_fetch_ahead_without_changing_anything():
    plain, ahead = (model(workers=n, epochs=2).fit(Pairs()).predict(IMAGES) for n in (0, 1))
    np.testing.assert_array_equal(ahead, plain)


def test_brain_floats_for_the_backbone_alone():
    seen = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(36, 6)

        def forward(self, x):
            out = self.layer(x.flatten(1))
            seen.append(out.dtype)
            return out

    half = model(Watched(), mixed_precision="bf16").fit(IMAGES, SHARES)
    assert set(seen) == {torch.bfloat16}
    assert half.predict_dist(IMAGES).log_prob(torch.as_tensor(SHARES)).dtype == torch.float64
    seen.clear()
    whole = model(Watched(), mixed_precision="auto").fit(IMAGES, SHARES)
    assert set(seen) == {torch.float32}, "a CPU is not a GPU"
    assert half.score(IMAGES, SHARES) == pytest.approx(whole.score(IMAGES, SHARES), abs=0.05)


def test_the_users_module_stays_as_it_was():
    module = cnn()
    before = copy.deepcopy(module.state_dict())
    fitted = model(module).fit(IMAGES, SHARES)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    again = weights(fitted)
    fitted.predict(IMAGES)
    fitted.predict_interval(IMAGES)
    assert all(torch.equal(again[name], value) for name, value in weights(fitted).items())
