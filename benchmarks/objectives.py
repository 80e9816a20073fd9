"""Losses of the newer learners next to those of PyLDL, on the same shares and weights.

    KERAS_BACKEND=torch python benchmarks/objectives.py    # seconds; needs python-ldl 0.1.2 with keras

PyLDL's losses are called as they are, without a fit: in float32, with predictions, outputs and weights that are drawn.
The script fails if one differs by more than 1e-4 of its size. Its RkNN-LDL, TLRLDL and S-KLD have no loss that could be
called for ours: what differs there is stated in the docstrings of our classes. It has neither EDL nor CDL.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from scipy.special import softmax

from snefy_ldl.learners import LDLDPM, LDLDVS, DeltaLDL
from snefy_ldl.learners.enhancement import ConLE

sys.modules.setdefault("skfuzzy", ModuleType("skfuzzy"))  # one of PyLDL's enhancers needs it, none of these
import keras  # noqa: E402
from pyldl.algorithms import LDL_DVS, Delta_LDL  # noqa: E402
from pyldl.algorithms import ConLE as TheirConLE  # noqa: E402
from pyldl.algorithms._ldl_dpm import _DPMParameters  # noqa: E402

RANDOM = np.random.default_rng(0)
X, D, P = RANDOM.normal(size=(30, 2)), RANDOM.dirichlet(np.ones(4), 30), RANDOM.dirichlet(np.ones(4), 30)


def single(*tables):
    return [keras.ops.convert_to_tensor(np.asarray(table, dtype=np.float32)) for table in tables]


def mean_loss(model, D, P):
    return float(model._rows(D)(torch.from_numpy(np.log(P))).mean())


def delta():
    """With their s = 1; ours is divided by its slope at a row that is right."""
    true, found, even = single(D, P, np.full_like(D, 0.25))
    size = float(keras.ops.mean(keras.losses.kl_divergence(true, even)))
    theirs = Delta_LDL._loss(SimpleNamespace(_model=lambda _: found, _delta=size), None, true)
    return float(theirs), mean_loss(DeltaLDL(sharpness=size), D, P) * (0.5 - 1.0 / (1.0 + np.exp(size)))


def divisiveness():
    """For two labels: with more, they compare each pair with all labels."""
    D2, P2 = (table[:, :2] / table[:, :2].sum(1, keepdims=True) for table in (D, P))
    true, found, one, other = single(D2, P2, [1, 0], [0, 1])
    gap = LDL_DVS.dvs(LDL_DVS._psi(true, one, other, 10.0), found, one, other, 10.0)
    theirs = keras.ops.mean(keras.losses.kl_divergence(true, found)) + 0.3 * gap
    return float(theirs), mean_loss(LDLDVS(alpha=0.3, sharpness=10.0), D2, P2)


def mixture():
    """Minus the mean log density, with the same weights."""
    K, theta, gamma = 3, RANDOM.normal(size=(3, 3, 4)), RANDOM.normal(size=(3, 3))
    sticks = np.array([0.5, 0.3, 0.2])
    theirs = _DPMParameters(theta, gamma, 20.0, 0.0, 0.0)(tuple(single(X, D, sticks)))
    ours = LDLDPM(n_components=K, strength=20.0)
    ours.weights_, ours.strength_ = sticks, 20.0
    Z = np.column_stack([X, np.ones(len(X))])
    outputs = np.einsum("nd,kdl->nkl", Z, theta).reshape(len(X), -1)
    density = ours._mixture(torch.from_numpy(outputs), torch.from_numpy(Z @ gamma))
    return float(theirs), -float(density.log_prob(torch.from_numpy(D)).mean())


def contrast():
    """ConLE's three terms."""
    tables = {"features": RANDOM.normal(size=(30, 5)), "labels": RANDOM.normal(size=(30, 5))}
    scores, logical = RANDOM.normal(size=(30, 4)), (D > 0.2).astype(float)
    Z, Q, found, applies = single(*tables.values(), softmax(scores, axis=1), logical)
    peer = SimpleNamespace(_call=lambda *_: (Z, Q, found), _con=TheirConLE._con, _tau=0.4)
    peer._alpha, peer._beta, peer._threshold = 0.3, 0.7, 0.1
    nets = {name: lambda _, t=table: torch.from_numpy(t) for name, table in (tables | {"shares": scores}).items()}
    ours = ConLE(alpha=0.3, beta=0.7, temperature=0.4, margin=0.1)
    loss = ours._loss(nets, torch.from_numpy(X), torch.from_numpy(logical), torch.Generator())
    return float(TheirConLE._loss(peer, None, applies, 0, 30)), float(loss)


def main():
    cases = {"DeltaLDL": delta, "LDLDVS": divisiveness, "LDLDPM": mixture, "ConLE": contrast}
    for name, case in cases.items():
        theirs, ours = case()
        print(f"{name:10}PyLDL {theirs:.6f}  here {ours:.6f}")
        if not abs(ours - theirs) <= 1e-4 * abs(theirs):
            sys.exit(f"{name} differs")


if __name__ == "__main__":
    main()
