"""Model folders to and from the Hugging Face Hub, each with a card. Needs the extra ``hub``."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from sklearn.utils.validation import check_is_fitted

from snefy_ldl.apps.serve.explorer.rows import past_columns
from snefy_ldl.apps.serve.store import ServedModel, load_intervals, model_card
from snefy_ldl.errors import InputError
from snefy_ldl.persistence import load, read_config, save_calibration
from snefy_ldl.prediction import DistributionPredictor

try:
    from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
except ImportError:
    raise ImportError("the Hugging Face Hub needs huggingface_hub: pip install 'snefy-ldl[hub]'") from None


class HubModel(ModelHubMixin, library_name="snefy-ldl"):  # type: ignore[misc, call-arg]
    """A fitted model with its description for the Hub: ``save_pretrained``, ``push_to_hub``, ``from_pretrained``.

    What is written is a model folder (:meth:`snefy_ldl.SnefyLDL.save`: safetensors and JSON, no pickle), its
    calibration where there is one, ``config.json`` with the description below, and the card ``README.md``; an existing
    card is kept, since somebody may have edited it.

    Args:
        model: fitted.
        intervals: its conformal intervals, calibrated; None where there are none.
        data: description of the training data, for the card.
        measures: values by name, measured on rows that the fit did not see (:func:`snefy_ldl.metrics.score` returns
            such a dict), for the card.
        license: of the model, as the Hub spells it ("mit", "cc-by-4.0").

    Raises:
        InputError: the model is not an estimator of this library.
        NotFittedError: before a fit.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = HubModel(model, data="Made up.").save_pretrained(folder)
        ...     again = HubModel.from_pretrained(folder)
        >>> again.data, bool((again.model.predict(city.X) == model.predict(city.X)).all())
        ('Made up.', True)
    """

    def __init__(
        self,
        model: Any,
        intervals: Any = None,
        data: str | None = None,
        measures: dict[str, float] | None = None,
        license: str | None = None,
    ) -> None:
        if not isinstance(model, DistributionPredictor):
            raise InputError(f"only an estimator of this library goes to the Hub; got {type(model).__name__}.")
        check_is_fitted(model)
        self.model, self.intervals = model, intervals
        self.data, self.measures, self.license = data, measures, license
        # config.json: without this, the mixin would write the model's parameters, too
        self._hub_mixin_config = {"data": data, "measures": measures, "license": license}

    def _save_pretrained(self, save_directory: Path) -> None:
        self.model.save(save_directory)
        if self.intervals is not None:
            save_calibration(save_directory, self.intervals.to_dict())

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **settings: Any) -> HubModel:
        folder = Path(model_id)
        if not folder.is_dir():
            names = ("revision", "cache_dir", "force_download", "local_files_only", "token")
            folder = Path(snapshot_download(model_id, **{name: settings.get(name) for name in names}))
        model = load(folder, **{name: settings.get(name) for name in ("backbone", "device")})
        about = {name: settings.get(name) for name in ("data", "measures", "license")}
        return cls(model, load_intervals(folder, model), **about)

    def generate_model_card(self, repo_id: str | None = None, **_: Any) -> ModelCard:
        """The model card.

        Args:
            repo_id: where the model will be, "user/name".

        Returns:
            The Hub's card.

        Example:
            >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
            >>> "## Limits" in HubModel(model).generate_model_card().text
            True
        """
        with tempfile.TemporaryDirectory() as place:
            config = read_config(Path(self.model.save(Path(place) / "model")))
        name, version = (repo_id or "model").split("/")[-1], config["weights"]["sha256"][:12]
        model, inner = past_columns(self.model)
        served = ServedModel(name, Path(name), model, inner, self.intervals, config, version, time.time())
        return ModelCard(write_card(model_card(served), repo_id, self.data, self.measures, self.license))


def push_to_hub(
    model: Any,
    repo_id: str,
    intervals: Any = None,
    data: str | None = None,
    measures: Mapping[str, float] | None = None,
    license: str | None = None,
    **settings: Any,
) -> str:
    """Put a fitted model with its card on the Hugging Face Hub.

    Args:
        model: fitted.
        repo_id: "user/name"; made where it is missing.
        intervals: its calibrated conformal intervals, or None.
        data: description of the training data.
        measures: values by name, measured on rows that the fit did not see.
        license: of the model, as the Hub spells it.
        settings: of ``ModelHubMixin.push_to_hub``: ``private``, ``token``, ``branch``, ``commit_message`` ...

    Returns:
        The address of the commit.

    Raises:
        InputError: the model is not an estimator of this library.
        NotFittedError: before a fit.

    Example:
        >>> push_to_hub(model, "me/soil", data="GEMAS, 2014", private=True)  # doctest: +SKIP
    """
    known = None if measures is None else {name: float(value) for name, value in measures.items()}
    wrapped = HubModel(model, intervals, data=data, measures=known, license=license)
    return str(wrapped.push_to_hub(repo_id, model_card_kwargs={"repo_id": repo_id}, **settings))


def from_pretrained(name: str | Path, **settings: Any) -> Any:
    """Load a model from the Hub or from a folder, without executing any of its content.

    Args:
        name: "user/name", or a folder.
        settings: of ``ModelHubMixin.from_pretrained`` (``revision``, ``token``, ``local_files_only`` ...) and of
            :func:`snefy_ldl.load` (``backbone``, ``device``).

    Returns:
        The fitted model; :meth:`HubModel.from_pretrained` also has its calibrated intervals.

    Raises:
        ModelFileError: there is no complete model.

    Example:
        >>> model = from_pretrained("me/soil")  # doctest: +SKIP
    """
    return HubModel.from_pretrained(name, **settings).model


#: Names of labels or features that a card lists before it only counts them.
MOST_NAMES = 40


def write_card(
    facts: Mapping[str, Any],
    repo_id: str | None = None,
    data: str | None = None,
    measures: Mapping[str, float] | None = None,
    license: str | None = None,
) -> str:
    """The card of a model, as Markdown with the Hub's YAML header.

    Args:
        facts: what :func:`snefy_ldl.apps.serve.store.model_card` gathers.
        repo_id: where the model will be, "user/name"; None leaves a placeholder.
        data: description of the training data; the card says so if it is missing.
        measures: values by name, measured on rows that the fit did not see; the card says so if they are missing.
        license: of the model, as the Hub spells it; None leaves it out.

    Returns:
        The text.

    Example:
        >>> facts = {"name": "soil", "labels": ["sand", "clay"], "features": ["rain"], "n_features": 1,
        ...          "library_version": "0.2.0", "trained_on": {"rows": 80, "epochs": 5, "device": "cpu"},
        ...          "measured": {"mean_log_likelihood_of_rows_held_back": 1.5, "how": "some rows"},
        ...          "intervals": {"calibrated_levels": [], "calibration_rows": None},
        ...          "distribution": {},
        ...          "limits": ["Few rows."], "example_row": None}
        >>> print(write_card(facts).splitlines()[0])
        ---
    """
    example, dist, place = facts["example_row"], facts["distribution"], repo_id or "USER/NAME"
    row = "...  # rows as the network takes them" if example is None else f"[{example!r}]"
    row = f"pandas.DataFrame({row})" if isinstance(example, dict) else row
    unnamed = f"{facts['n_features']} numbers without names" if facts["n_features"] is not None else None
    values = {
        "license": f"license: {json.dumps(license)}\n" if license else "",
        "title": place.split("/")[-1] if repo_id else facts["name"],
        "version": facts["library_version"],
        "distribution": f"{dist['kind']}, {dist['members']} members" if "kind" in dist else "custom network",
        "labels": _listed(facts["labels"]),
        "features": _listed(facts["features"]) or unnamed or "the input of its custom network",
        "imports": "import pandas\n" if isinstance(example, dict) else "",
        "place": place,
        "row": row,
        "data": data or "The training data were not described.",
        "rows": f"{facts['trained_on']['rows']:,}",
        "epochs": facts["trained_on"]["epochs"],
        "measures": _measures(facts["measured"], measures),
        "calibration": _calibration(facts["intervals"]),
        "limits": "\n".join(f"- {limit}" for limit in facts["limits"]),
    }
    text = files("snefy_ldl.apps.integrations").joinpath("card.md").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _listed(names: list[str] | None) -> str:
    shown = ", ".join(f"`{name}`" for name in (names or [])[:MOST_NAMES])
    return shown if names is None or len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def _measures(measured: Mapping[str, Any], measures: Mapping[str, float] | None) -> str:
    lines = ["No measures on rows that the fit did not see were given."]
    if measures:
        lines = ["On rows that the fit did not see:", "", "| measure | value |", "|---|---|"]
        lines += [f"| {name} | {float(value):.4g} |" for name, value in measures.items()]
    held = measured["mean_log_likelihood_of_rows_held_back"]
    if held is not None:
        lines += ["", f"Mean log likelihood of rows held back: {held:.4g} ({measured['how']})."]
    return "\n".join(lines)


def _calibration(intervals: Mapping[str, Any]) -> str:
    if not intervals["calibrated_levels"]:
        return "Its intervals are exact under the model, but **not** calibrated on other rows."
    listed = ", ".join(f"{100 * level:g} %" for level in intervals["calibrated_levels"])
    return (
        f"Conformal intervals at {listed}, calibrated on {intervals['calibration_rows']:,} rows, come with it "
        "(`HubModel.from_pretrained(...).intervals`): they cover similar new rows at the stated rate."
    )
