"""Models in MLflow: a flavour of this library, and ``pyfunc`` with means and intervals. Needs the extra ``mlflow``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.validation import check_confidence
from snefy_ldl._internal.version import __version__
from snefy_ldl.apps.serve.explorer.rows import label_names
from snefy_ldl.apps.serve.store import load_intervals
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.errors import InputError
from snefy_ldl.persistence import load, save_calibration
from snefy_ldl.prediction import DistributionPredictor

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow warns of its own types while it loads
        import mlflow.pyfunc
        import pandas as pd
        from mlflow.artifacts import download_artifacts
        from mlflow.models import Model, ModelSignature
        from mlflow.types.schema import ColSpec, DataType, ParamSchema, ParamSpec, Schema
except ImportError:
    raise ImportError("MLflow models need mlflow or mlflow-skinny: pip install 'snefy-ldl[mlflow]'") from None

__all__ = ["FLAVOR", "IntervalModel", "load_model", "log_model", "save_model"]

#: Name of the flavour, and of the model folder within MLflow's.
FLAVOR, FOLDER = "snefy_ldl", "model"
#: Default level of the intervals.
LEVEL = 0.9


class IntervalModel:
    """The ``pyfunc`` model: from a table of features to a table of means and intervals.

    Args:
        model: fitted.
        intervals: its conformal intervals, or None; at calibrated levels they replace the model's own.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> IntervalModel(model).predict(city.X).columns.tolist()[:3]
        ['label_0', 'label_0_low', 'label_0_high']
    """

    def __init__(self, model: Any, intervals: ConformalIntervals | None = None) -> None:
        self.model, self.intervals = model, intervals

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Means and intervals of every label's share.

        Args:
            model_input: features (N, d), a DataFrame or an array, as the fit took them.
            params: ``confidence_level``, between 0 and 1; 0.9 by default.

        Returns:
            A DataFrame: for each label its mean, ``..._low`` and ``..._high``.

        Raises:
            InputError: the features do not fit the model, or the level lies outside (0, 1).

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
            >>> IntervalModel(model).predict(city.X, {"confidence_level": 0.5}).shape
            (60, 9)
        """
        level = check_confidence((params or {}).get("confidence_level", LEVEL))
        table = model_input
        if hasattr(table, "to_numpy") and not hasattr(self.model, "feature_names_in_") and self.model.columns_ is None:
            table = table.to_numpy()  # a server makes a DataFrame of every table; this model was fitted to an array
        mean, ends = np.asarray(self.model.predict(table)), self._ends(table, level)
        columns: dict[str, Any] = {}
        for r, label in enumerate(label_names(self.model)):
            columns |= {f"{label}": mean[:, r], f"{label}_low": ends[:, r, 0], f"{label}_high": ends[:, r, 1]}
        return pd.DataFrame(columns, index=getattr(model_input, "index", None))

    def _ends(self, table: Any, level: float) -> Any:
        levels = [] if self.intervals is None else np.atleast_1d(self.intervals.confidence_level).tolist()
        if self.intervals is None or level not in levels:
            return self.model.predict_interval(table, level)
        ends = self.intervals.predict_interval(table)
        return ends if ends.ndim == 3 else ends[..., levels.index(level)]


def save_model(
    model: Any,
    path: str | Path,
    intervals: ConformalIntervals | None = None,
    mlflow_model: Any = None,
    **more: Any,
) -> None:
    """Write a fitted model as a folder of MLflow's, with this library's flavour and ``pyfunc``.

    Args:
        model: fitted.
        path: folder to write; it must not exist, or be empty.
        intervals: its calibrated conformal intervals, or None.
        mlflow_model: MLflow's description to add to; a new one by default.
        more: ``signature``, ``input_example``, ``metadata``, ``pip_requirements``; by default the signature is made
            from the model's columns.

    Raises:
        InputError: the model is not an estimator of this library, or has a custom network, whose code is not saved.
        NotFittedError: before a fit.

    Example:
        >>> import tempfile
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(model, Path(folder) / "city")
        ...     again = load_model(str(Path(folder) / "city"))
        >>> bool((again.predict(city.X) == model.predict(city.X)).all())
        True
    """
    if not isinstance(model, DistributionPredictor) or getattr(model, "backbone", None) is not None:
        raise InputError("only an estimator without a custom network can be saved for MLflow: code is never saved.")
    check_is_fitted(model)
    folder = Path(path)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} exists already; name a new folder.")
    model.save(folder / FOLDER)
    if intervals is not None:
        save_calibration(folder / FOLDER, intervals.to_dict())
    described = Model() if mlflow_model is None else mlflow_model
    described.signature = more.get("signature") or _signature(model)
    if more.get("metadata") is not None:
        described.metadata = more["metadata"]
    described.add_flavor(FLAVOR, model_data=FOLDER, library_version=__version__)
    needs = more.get("pip_requirements") or [f"snefy-ldl[mlflow]=={__version__}"]
    (folder / "requirements.txt").write_text("\n".join([*needs, ""]), encoding="utf-8")
    mlflow.pyfunc.add_to_model(described, loader_module=__name__, data=FOLDER, python_env=None)
    described.save(str(folder / "MLmodel"))


def log_model(model: Any, name: str = "model", intervals: ConformalIntervals | None = None, **more: Any) -> Any:
    """Log a fitted model to the active run of MLflow.

    Args:
        model: fitted.
        name: of the model in the run.
        intervals: its calibrated conformal intervals, or None.
        more: of ``mlflow.models.Model.log``: ``registered_model_name``, ``signature``, ``metadata`` ...

    Returns:
        MLflow's ``ModelInfo``, whose ``model_uri`` :func:`load_model` and ``mlflow.pyfunc.load_model`` take.

    Raises:
        InputError: as :func:`save_model`.
        NotFittedError: before a fit.

    Example:
        >>> with mlflow.start_run():  # doctest: +SKIP
        ...     info = log_model(model)
    """
    from snefy_ldl.apps.integrations import mlflow as flavor  # MLflow calls the flavour's module back

    return Model.log(None, flavor=flavor, name=name, model=model, intervals=intervals, **more)


def load_model(model_uri: str) -> Any:
    """Load the fitted model itself, with its full distribution.

    Args:
        model_uri: a folder, ``models:/name/1``, ``runs:/.../model`` ...

    Returns:
        The model.

    Raises:
        ModelFileError: there is no complete model.

    Example:
        >>> model = load_model("models:/soil/3")  # doctest: +SKIP
    """
    return load(Path(download_artifacts(artifact_uri=model_uri)) / FOLDER)


def _load_pyfunc(path: str) -> IntervalModel:
    """What ``mlflow.pyfunc.load_model`` calls with the model folder."""
    model = load(path)
    return IntervalModel(model, load_intervals(Path(path), model))


def _signature(model: Any) -> ModelSignature:
    """Names and types of inputs and outputs; no inputs if the model has no feature names."""
    names, inputs = getattr(model, "feature_names_in_", None), None
    if names is not None and (model.columns_ is None or model.columns_.is_plain):
        inputs = Schema([ColSpec(DataType.double, str(name)) for name in names])
    outputs = [f"{label}{end}" for label in label_names(model) for end in ("", "_low", "_high")]
    params = ParamSchema([ParamSpec("confidence_level", DataType.double, LEVEL)])
    return ModelSignature(inputs, Schema([ColSpec(DataType.double, name) for name in outputs]), params)
