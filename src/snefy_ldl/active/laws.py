"""Strategies that ask the predicted law: score each row, take the highest scores, or a diverse batch among them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import RandomState
from torch import Tensor

from snefy_ldl._internal.laws import draw_from, tensor_for, to_numpy
from snefy_ldl._internal.limits import CACHE_ELEMENTS, COVARIANCE_ELEMENTS
from snefy_ldl._internal.tolerances import MATCHED_CONCENTRATIONS
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_choice, check_count, check_number
from snefy_ldl.active.features import Diverse, Geometry, choose_apart, labeled_table
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.query import Strategy, free_rows, top_rows
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.distributions.sampling import log_dirichlet_draws
from snefy_ldl.errors import InputError
from snefy_ldl.learners.dirichlet import dirichlet_entropy

#: Where the rows of a diverse batch differ.
Space = Literal["features", "prediction"]


@dataclass(eq=False, repr=False, kw_only=True)
class LawStrategy(Strategy):
    """A strategy that scores each row by its predicted law, and takes the highest scores.

    Args:
        diverse: True or ``"kmeans++"``, or ``"kmeans"``: among the rows with the highest scores, choose some that
            also differ from each other (:func:`snefy_ldl.active.features.choose_apart`), each weighted by its score.
        candidates: how many of the highest scores a diverse batch is chosen from; ``max(20 n, 1000)`` by default.
        space: where diverse rows differ: ``"features"`` (scaled), or ``"prediction"``, the square roots of the
            predicted mean, whose distance is Hellinger's; that also serves inputs that are no table.

    Raises:
        InputError: a setting is not one of these.

    Example:
        >>> from snefy_ldl.active import Variance
        >>> issubclass(Variance, LawStrategy), Variance(diverse="kmeans").diverse
        (True, 'kmeans')
    """

    needs_model = True
    #: Whether every block must see the same draws, so that their error is the same for all rows.
    same_draws = False

    diverse: Diverse = False
    candidates: int | None = None
    space: Space = "features"

    def __post_init__(self) -> None:
        check_choice("diverse", self.diverse, (True, False, "kmeans++", "kmeans"))
        if self.candidates is not None:
            check_count("candidates", self.candidates)
        check_choice("space", self.space, ("features", "prediction"))

    @abstractmethod
    def score(self, law: Any, random: RandomState) -> Array:
        """How much the label of each row is wanted.

        Args:
            law: what ``predict_dist`` gives for b rows.
            random: source of randomness.

        Returns:
            Scores (b,); larger is wanted more.
        """

    def weight(self, scores: Array, n_labels: int) -> Array:
        """Scores as weights of a diverse batch.

        Args:
            scores: of the candidates (c,).
            n_labels: L.

        Returns:
            Weights (c,), none negative.
        """
        return np.maximum(scores, 0.0)

    def block_rows(self, model: Any) -> int:
        """Rows whose laws are held at one time; see :meth:`Strategy.block_rows`."""
        n_labels = getattr(model, "n_labels_", 16)
        return min(super().block_rows(model), max(64, COVARIANCE_ELEMENTS // n_labels**2))

    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        model: Any = None,
        X_labeled: Any = None,
        random: RandomState,
        exclude: Mask | None = None,
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        parts, n_labels = [], 2
        seed = int(random.randint(2**31 - 1))
        for start, block in pool.blocks("score"):
            law = self.predicted_law(model, block, start)
            n_labels = int((law[0] if isinstance(law, list) else law).event_shape[0])
            parts.append(self.score(law, RandomState(seed) if self.same_draws else random))
        utilities = np.concatenate(parts)
        free = free_rows(len(utilities), n, exclude)
        if not self.diverse:
            return top_rows(utilities, n, free, random), utilities
        return self._apart(pool, n, utilities, free, model, X_labeled, random, n_labels), utilities

    def _apart(
        self,
        pool: Pool,
        n: int,
        utilities: Array,
        free: Mask,
        model: Any,
        X_labeled: Any,
        random: RandomState,
        n_labels: int,
    ) -> Index:
        """Rows (n,) of high utility that also differ from each other."""
        wanted = max(n, min(int(free.sum()), self.candidates or max(20 * n, 1000)))
        best = top_rows(utilities, wanted, free, random)
        rows = pool.take(best)
        if self.space == "features":
            scale = Geometry.of(pool, standardize=True)
            Z = scale(pool.as_table(rows, "X_pool"))
            labeled = labeled_table(X_labeled, pool, scale, Z.shape[1])
        else:
            Z = self._embedding(model, rows)
            labeled = None if X_labeled is None else self._embedding(model, X_labeled)
        method: Diverse = "kmeans++" if self.diverse is True else self.diverse
        chosen = choose_apart(Z, self.weight(utilities[best], n_labels), n, method, random, labeled)
        return best[chosen]

    def predicted_law(self, model: Any, block: Any, start: int = 0) -> Any:
        """The law of a block of rows, or a list of laws where several models are asked.

        Args:
            model: a fitted model with ``predict_dist``.
            block: rows (b, d).
            start: number of the first row, for messages.

        Returns:
            What ``predict_dist`` gives, batch (b,).

        Raises:
            InputError: the model has no ``predict_dist``, or it refuses the rows; the message names them.
        """
        if not hasattr(model, "predict_dist"):
            raise InputError(f"model must have predict_dist; got {type(model).__name__}.")
        try:
            with torch.no_grad():
                return model.predict_dist(block)
        except InputError as error:
            raise InputError(f"X_pool, rows from {start} on: {error}" if start else f"X_pool: {error}") from None

    def _embedding(self, model: Any, rows: Any) -> Array:
        law = self.predicted_law(model, rows)
        if isinstance(law, list):
            return np.hstack([np.sqrt(np.maximum(to_numpy(one.mean), 0.0)) for one in law])
        return np.sqrt(np.maximum(to_numpy(law.mean), 0.0))


def as_width(scores: Array, dimensions: float) -> Array:
    """Log volumes as widths, ``exp(score / dimensions)``, the largest being one.

    Args:
        scores: log volumes (c,).
        dimensions: of the space the volumes are in.

    Returns:
        Widths (c,).

    Example:
        >>> as_width(np.array([0.0, np.log(4.0)]), 2.0)
        array([0.5, 1. ])
    """
    finite = scores[np.isfinite(scores)]
    return np.exp((scores - (finite.max() if len(finite) else 0.0)) / dimensions)


class Variance(LawStrategy, name="variance"):
    """Total variance ``Σ_r Var[ℓ_r|x]``, the expected squared error of the predicted mean.

    Args:
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Example:
        >>> import torch
        >>> Variance().score(torch.distributions.Dirichlet(torch.ones(1, 2)), RandomState(0)).round(4)  # 1/12 each
        array([0.1667])
    """

    def score(self, law: Any, random: RandomState) -> Array:
        """Total variances (N,)."""
        return to_numpy(law.variance).sum(axis=1)


@dataclass(eq=False, repr=False)
class Entropy(LawStrategy, name="entropy"):
    """Differential entropy ``-E[log p(ℓ|x)]`` of the predicted law (Algorithms A2 and A3).

    Args:
        method: ``"model"``: the mean over exact draws of each row; ``"uniform"``: the paper's importance sampling from
            the uniform law; ``"shared"``: exact draws of each Dirichlet component, shared by all rows and weighted by
            their ``c_p(x)``. The last is unbiased too and several times cheaper; its error is mostly common to all
            rows, which leaves their order alone.
        n_draws: draws per row; for ``"shared"`` draws of all components together (at least one each).
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Raises:
        InputError: a setting is out of its range.

    Example:
        >>> flat_and_sharp = torch.distributions.Dirichlet(torch.tensor([[1.0, 1.0], [50.0, 50.0]]))
        >>> int(Entropy().score(flat_and_sharp, RandomState(0)).argmax())
        0
    """

    method: Literal["model", "uniform", "shared"] = "model"
    n_draws: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("method", self.method, ("model", "uniform", "shared"))
        check_count("n_draws", self.n_draws, low=2)

    @property
    def same_draws(self) -> bool:  # type: ignore[override]
        """Draws that serve every row of a block serve every block."""
        return self.method != "model"

    def score(self, law: Any, random: RandomState) -> Array:
        """Entropies (N,)."""
        if not isinstance(law, SnefySimplex):
            return to_numpy(law.entropy())
        generator = torch.Generator(law.device).manual_seed(int(random.randint(2**31 - 1)))
        if self.method == "shared":
            return shared_entropy(law, self.n_draws, generator)
        value = law.entropy(self.n_draws, self.method, generator)
        assert isinstance(value, Tensor)
        return to_numpy(value)

    def weight(self, scores: Array, n_labels: int) -> Array:
        """The width of the law, ``exp(H / (L-1))``."""
        return as_width(scores, n_labels - 1)


def shared_entropy(law: SnefySimplex, n_draws: int, generator: torch.Generator) -> Array:
    """Differential entropies by draws that serve every row.

    ``-Σ_p c_p(x) mean_s log p(ℓ_ps|x)`` with ``ℓ_ps ~ Dirichlet(α_p)``; unbiased.

    Args:
        law: of N rows; with votes or a centre each row gets draws apart from the others.
        n_draws: draws of all components together, at least one each.
        generator: source of randomness.

    Returns:
        Entropies (N,).

    Example:
        >>> flat = SnefySimplex.from_mixture(torch.ones(2, 1).double(), torch.ones(1, 3).double())
        >>> shared_entropy(flat, 100, torch.Generator().manual_seed(0)).round(6)  # log of the triangle's area, 1/2
        array([-0.693147, -0.693147])
    """
    if (
        law.offset is not None or law.parts.scale is not None or law.has_atoms
    ):  # components then differ from row to row, or are no Dirichlets
        value = law.entropy(n_draws, "model", generator)
        assert isinstance(value, Tensor)
        return to_numpy(value)
    repeats = max(1, round(n_draws / law.n_components))
    logs = log_dirichlet_draws(law.concentration.repeat(repeats, 1), generator)  # (S, L), S = repeats P
    log_prob = law.shared_log_prob(logs)
    step = max(1, CACHE_ELEMENTS // len(logs))
    answers = []
    for start in range(0, len(law), step):
        rows = slice(start, min(start + step, len(law)))
        weights = law.weights(rows)  # (b, P)
        log_p = log_prob(rows).unflatten(1, (repeats, -1)).mean(1)
        answers.append(-(weights * log_p).sum(-1))
    return to_numpy(torch.cat(answers))


@dataclass(eq=False, repr=False)
class DirichletEntropy(LawStrategy, name="dirichlet"):
    """Differential entropy of one Dirichlet with the predicted mean, the paper's baseline.

    Args:
        concentration: its sum of parameters; None takes, for each row, the one whose total variance is the predicted
            law's. For a :class:`~snefy_ldl.learners.DirichletLDL` that is the law it predicts.
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Raises:
        InputError: the concentration is not positive, or another setting is out of its range.

    Example:
        >>> import torch
        >>> law = torch.distributions.Dirichlet(torch.ones(1, 2, dtype=torch.float64))
        >>> abs(DirichletEntropy().score(law, RandomState(0)).round(6))  # flat on [0, 1]: log 1
        array([0.])
    """

    concentration: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.concentration is not None:
            check_number("concentration", self.concentration, strict=True)

    def score(self, law: Any, random: RandomState) -> Array:
        """Entropies (N,)."""
        mean, variance = to_numpy(law.mean), to_numpy(law.variance)
        if self.concentration is not None:
            total = np.full(len(mean), float(self.concentration))
        else:
            with np.errstate(divide="ignore"):
                total = (1.0 - (mean**2).sum(axis=1)) / variance.sum(axis=1) - 1.0
            total = np.clip(total, *MATCHED_CONCENTRATIONS)
        alpha = np.maximum(total[:, None] * mean, MATCHED_CONCENTRATIONS[0] ** 2)
        return dirichlet_entropy(alpha)

    def weight(self, scores: Array, n_labels: int) -> Array:
        """The width of the law, ``exp(H / (L-1))``."""
        return as_width(scores, n_labels - 1)


@dataclass(eq=False, repr=False)
class Epistemic(LawStrategy, name="epistemic"):
    """Members' disagreement: the mutual information between what is predicted and which member predicts it.

    With members ``p_k`` of weight ``π_k`` and ``p = Σ π_k p_k``:

    - ``target="distribution"``: ``Σ_k π_k E_{p_k}[log p_k(ℓ|x) - log p(ℓ|x)]``, by exact draws of each member;
    - ``target="vote"``: ``H(E ℓ) - Σ_k π_k H(E_k ℓ)``, about one annotator's vote; in closed form.

    Both lie between 0 and log K. The first comes near log K where members are sure of different things.

    Args:
        target: ``"distribution"`` or ``"vote"``.
        n_draws: draws per member and row for ``"distribution"``.
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Raises:
        InputError: a setting is out of its range.

    Example:
        >>> import torch
        >>> sure = [torch.distributions.Dirichlet(torch.tensor([alpha])) for alpha in ([90.0, 10.0], [10.0, 90.0])]
        >>> Epistemic(n_draws=50).score(sure, RandomState(0)).round(3)  # nearly log 2: sure of different things
        array([0.693])
    """

    target: Literal["distribution", "vote"] = "distribution"
    n_draws: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("target", self.target, ("distribution", "vote"))
        check_count("n_draws", self.n_draws)

    def predicted_law(self, model: Any, block: Any, start: int = 0) -> Any:
        """See :meth:`LawStrategy.predicted_law`; a list of models gives a list of laws."""
        if isinstance(model, (list, tuple)):
            return [super(Epistemic, self).predicted_law(one, block, start) for one in model]
        return super().predicted_law(model, block, start)

    def score(self, law: Any, random: RandomState) -> Array:
        """Nats (N,)."""
        laws, weights = members_of(law)
        if self.target == "vote":
            means = np.stack([to_numpy(one.mean) for one in laws])  # (K, N, L)
            entropies = _shannon(means)  # (K, N)
            gain: Array = _shannon((weights[..., None] * means).sum(0)) - (weights * entropies).sum(0)
            return np.maximum(gain, 0.0)
        log_weights = np.log(weights)
        total = np.zeros(weights.shape[1])
        for k, one in enumerate(laws):
            draws = to_numpy(draw_from(one, self.n_draws, lambda: int(random.randint(2**31 - 1))))
            draws = draws / draws.sum(axis=-1, keepdims=True)
            log_p = np.stack([to_numpy(other.log_prob(tensor_for(other, draws))) for other in laws])  # (K, S, N)
            mixed = np.logaddexp.reduce(log_p + log_weights[:, None, :], axis=0)
            total += weights[k] * (log_p[k] - mixed).mean(axis=0)
        return total


def members_of(law: Any) -> tuple[list[Any], Array]:
    """The laws that are averaged, and how much each counts.

    Args:
        law: of an ensemble, batch (N,); or a list of laws, which count equally.

    Returns:
        The K laws, each with batch (N,), and their weights (K, N).

    Raises:
        InputError: there are fewer than two members.

    Example:
        >>> import torch
        >>> laws = [torch.distributions.Dirichlet(torch.ones(3, 2)) for _ in range(2)]
        >>> members_of(laws)[1].shape
        (2, 3)
    """
    if isinstance(law, Sequence):
        laws = list(law)
        if len(laws) < 2:
            raise InputError("epistemic compares members: pass at least two models.")
        return laws, np.full((len(laws), int(laws[0].batch_shape[0])), 1.0 / len(laws))
    if not isinstance(law, SnefySimplex) or law.n_members < 2:
        raise InputError(
            "epistemic compares members: fit SnefyLDL(n_members=4), or pass model=[...], a list of fitted models."
        )
    return list(law.members()), to_numpy(law.log_members.exp().T)


def _shannon(shares: Array) -> Array:
    """Shannon entropy over the last axis."""
    logs = np.log(np.where(shares > 0.0, shares, 1.0))
    return -(shares * logs).sum(axis=-1)
