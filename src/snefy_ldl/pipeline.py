"""LDLPipeline: scikit-learn's Pipeline, which keeps the whole density behind any transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sklearn.pipeline import Pipeline

from snefy_ldl._internal.extras import extra
from snefy_ldl._internal.files import read_regular, write_bytes, write_json
from snefy_ldl.errors import ModelFileError
from snefy_ldl.persistence import load, make_head, read_description

__all__ = ["LDLPipeline"]

FORMAT = "snefy-ldl pipeline"
CONFIG, TRANSFORMERS, MODEL = "pipeline.json", "transformers.skops", "model"
#: Answers of the last step about rows, which the pipeline gives after transforming them.
ANSWERS = (
    *("predict_dist", "predict_var", "predict_mean_var", "predict_cov", "predict_zero", "predict_quantiles"),
    *("predict_interval", "log_prob", "sample", "entropy"),
)


class LDLPipeline(Pipeline):  # type: ignore[misc]
    """Transformers in front of a model of label distributions, as one model that answers every question.

    In addition to scikit-learn's :class:`~sklearn.pipeline.Pipeline`, it has ``predict_dist``, ``predict_var``,
    ``predict_mean_var``, ``predict_cov``, ``predict_zero``, ``predict_quantiles``, ``predict_interval``, ``log_prob``,
    ``sample`` and ``entropy`` of its last step, each of which takes the rows as the first transformer does. Conformal
    prediction and active learning take it like the model itself, and ``GridSearchCV`` searches its settings.

    Args:
        steps: pairs (name, transformer), the last (name, model).
        transform_input: see scikit-learn's Pipeline.
        memory: where fitted transformers are kept; nowhere by default.
        verbose: whether to print the time that each step takes.

    Example:
        >>> from sklearn.preprocessing import StandardScaler
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=80, random_state=0)
        >>> pipeline = LDLPipeline([("scale", StandardScaler()), ("model", SnefyLDL(epochs=1, random_state=0))])
        >>> pipeline.fit(city.X, city.D).predict_interval(city.X[:2]).shape
        (2, 3, 2)
    """

    def fit(
        self, X: Any, D: Any = None, *, counts: Any = None, sample_weight: Any = None, **params: Any
    ) -> LDLPipeline:
        """Fit all steps, one after the other.

        Args:
            X: rows, as the first step takes them.
            D: label distributions (N, L); or ``counts``.
            counts: votes (N, L), for the last step.
            sample_weight: how much each row counts (N,), for the last step.
            params: further arguments of steps, ``step__argument``.

        Returns:
            The pipeline itself.

        Raises:
            InputError: where the last step refuses its data.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_annotators
            >>> votes = make_annotators(n=60, random_state=0)
            >>> pipeline = LDLPipeline([("model", SnefyLDL(epochs=1, random_state=0))])
            >>> pipeline.fit(votes.X, counts=votes.counts).n_labels_ == votes.counts.shape[1]
            True
        """
        last = self.steps[-1][0]
        for name, value in (("counts", counts), ("sample_weight", sample_weight)):
            if value is not None:
                params[f"{last}__{name}"] = value
        return super().fit(X, D, **params)

    @property
    def model_(self) -> Any:
        """The last step."""
        return self.steps[-1][1]

    def transformed(self, X: Any) -> Any:
        """Rows as the last step sees them.

        Args:
            X: rows, as the first step takes them.

        Returns:
            What the last transformer gives.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> import numpy as np
            >>> from sklearn.preprocessing import FunctionTransformer
            >>> half = FunctionTransformer(lambda X: X / 2)
            >>> LDLPipeline([("half", half), ("model", SnefyLDL())]).transformed(np.ones((1, 1)))
            array([[0.5]])
        """
        return X if len(self.steps) == 1 else self[:-1].transform(X)

    def encode(self, X: Any) -> Any:
        """The numbers that the model makes of rows.

        Args:
            X: rows, as the first step takes them.

        Returns:
            Numbers (N, d).

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> LDLPipeline([("model", SnefyLDL(epochs=1))]).fit(city.X, city.D).encode(city.X).shape
            (60, 5)
        """
        rows = self.transformed(X)
        encode = getattr(self.model_, "encode", None)
        return rows if encode is None else encode(rows)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "steps" or "steps" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        model = self.__dict__["steps"][-1][1]
        if name in ANSWERS and callable(getattr(model, name, None)):
            return self._answer(name)
        if name.endswith("_") and not name.startswith("_") and not name.startswith("feature_names"):
            return getattr(model, name)  # label_names_, n_labels_, zero_policy_, history_, ...
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _answer(self, name: str) -> Callable[..., Any]:
        def answer(X: Any, *args: Any, **settings: Any) -> Any:
            return getattr(self.model_, name)(self.transformed(X), *args, **settings)

        answer.__name__, answer.__doc__ = name, getattr(self.model_, name).__doc__
        return answer

    def score(self, X: Any, D: Any = None, sample_weight: Any = None, *, counts: Any = None, **params: Any) -> float:
        """The score of the last step: a mean log likelihood for a density.

        Args:
            X: rows, as the first step takes them.
            D: label distributions (N, L); or ``counts``.
            sample_weight: how much each row counts (N,).
            counts: votes (N, L).
            params: further arguments of the last step's ``score``.

        Returns:
            The score, higher is better.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> pipeline = LDLPipeline([("model", SnefyLDL(epochs=1, random_state=0))]).fit(city.X, city.D)
            >>> pipeline.score(city.X, city.D) == pipeline.model_.score(city.X, city.D)
            True
        """
        more = {"sample_weight": sample_weight, "counts": counts}
        params |= {name: value for name, value in more.items() if value is not None}
        return float(self.model_.score(self.transformed(X), D, **params))

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the pipeline into a folder without pickle: the transformers by skops, the model as it saves itself.

        Args:
            folder: made where it is missing.

        Returns:
            The folder.

        Raises:
            ModelFileError: where a transformer holds what cannot be written without pickle, such as a function of
                yours, or the last step cannot be saved.
            ImportError: skops is not installed.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> import tempfile
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> pipeline = LDLPipeline([("model", SnefyLDL(epochs=1, random_state=0))]).fit(city.X, city.D)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     again = LDLPipeline.load(pipeline.save(folder))
            >>> bool((again.predict(city.X) == pipeline.predict(city.X)).all())
            True
        """
        place, model = Path(folder), self.model_
        if not hasattr(model, "pack"):
            raise ModelFileError(f"the last step is a {type(model).__name__}; save writes models of this library.")
        content = _transformer_bytes(self.steps[:-1])
        place.mkdir(parents=True, exist_ok=True)
        if content is not None:
            write_bytes(place / TRANSFORMERS, content)
        model.save(place / MODEL)
        steps = {"transformers": [name for name, _ in self.steps[:-1]], "model": self.steps[-1][0]}
        write_json(place / CONFIG, {**make_head(FORMAT), **steps})
        return place

    @classmethod
    def load(cls, folder: str | Path) -> LDLPipeline:
        """Read a pipeline that :meth:`save` wrote; nothing in the folder is executed.

        Args:
            folder: where it is.

        Returns:
            The fitted pipeline; :meth:`save` has an example.

        Raises:
            ModelFileError: where a file is missing, damaged, foreign or of a newer version, or holds a type that is not
                trusted.
            ImportError: skops is not installed.
        """
        place = Path(folder)
        config = read_description(place / CONFIG, FORMAT)
        names, last = config.get("transformers"), config.get("model")
        if not isinstance(names, list) or not isinstance(last, str):
            raise ModelFileError(f"{place / CONFIG} is damaged: it does not name the steps.")
        transformers = _read_transformers(place / TRANSFORMERS, len(names)) if names else []
        return cls([*zip([str(name) for name in names], transformers), (last, load(place / MODEL))])


def _skops() -> Any:
    with extra("pipelines", "saving a pipeline's transformers needs skops"):
        from skops import io
    return io


def _transformer_bytes(steps: list[Any]) -> bytes | None:
    """Fitted transformers as skops writes them; None if there are none."""
    if not steps:
        return None
    io = _skops()
    for name, step in steps:
        try:
            strange = io.get_untrusted_types(data=io.dumps(step))
        except Exception as error:  # skops raises many errors for objects it cannot write
            strange = [f"{type(error).__name__}: {error}"]
        if strange:
            kinds = ", ".join(strange[:3])
            raise ModelFileError(
                f"step {name!r} ({type(step).__name__}) cannot be saved without pickle: it holds {kinds}. Use a "
                "transformer of scikit-learn's, or save the last step alone (pipeline.model_.save(folder)) and make "
                "the others again."
            )
    return io.dumps([step for _, step in steps])


def _read_transformers(path: Path, n_steps: int) -> list[Any]:
    io = _skops()
    try:
        content = read_regular(path)
        strange = io.get_untrusted_types(data=content)
        if strange:
            raise ModelFileError(f"{path} holds types that are not trusted: {', '.join(strange[:3])}.")
        steps = io.loads(content, trusted=[])
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing: this folder does not hold a whole pipeline.") from None
    except (ModelFileError, ImportError):
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise ModelFileError(f"{path} is damaged: {type(error).__name__} {error}.") from None
    if not isinstance(steps, list) or len(steps) != n_steps:
        raise ModelFileError(f"{path} is damaged: it does not hold the {n_steps} transformers that {CONFIG} names.")
    return steps
