"""Data sets: what one is, and how to load a public one by its name or a table of your own."""

from __future__ import annotations

import difflib
import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from snefy_ldl._internal.text import plain_names, shorten
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.datasets.labelled import read_labelled
from snefy_ldl.datasets.shares import Unit
from snefy_ldl.datasets.table_files import TableSource
from snefy_ldl.errors import DataNotFoundError, InputError, LabelWarning


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Dataset:
    """Features and label distributions, with their names and where they come from.

    Args:
        X: Features (N, d), a DataFrame if they come from a table of your own.
        D: Label distributions (N, L) in float64, likewise; rows sum to one.
        counts: Vote counts (N, L) behind ``D`` if they are known.
        label_names: The L labels, in the order of D's columns.
        feature_names: The d features, in the order of X's columns.
        name: Short name of the set.
        source: Where it comes from.
        licence: Under what terms, as far as the source states.
        unit: In which the label columns of a table came; None for shares of one and votes.

    >>> Dataset(X=np.eye(2), D=np.full((2, 2), 0.5), label_names=["no", "yes"], feature_names=["a", "b"], name="tiny")
    Dataset('tiny': 2 rows, 2 features, 2 labels (no, yes))
    """

    X: Any
    D: Any
    counts: Any = None
    label_names: list[str]
    feature_names: list[str]
    name: str
    source: str = "not stated"
    licence: str = "not stated"
    unit: Unit | None = None

    def __repr__(self) -> str:
        votes = "" if self.counts is None else f", {np.sum(np.asarray(self.counts)):.0f} votes"
        return (
            f"{type(self).__name__}({self.name!r}: {len(self.D)} rows, {self.X.shape[1]} features, "
            f"{self.D.shape[1]} labels ({shorten(self.label_names, 6)}){votes})"
        )


def load_table(
    path: str | os.PathLike[str],
    labels: str | Sequence[str],
    features: str | Sequence[str] | None = None,
    counts: bool = False,
    normalize: bool = False,
    sheet: str | int | None = None,
) -> Dataset:
    r"""A table of your own as a :class:`Dataset`: text, Excel or Parquet.

    Percentages, numbers of votes and rounded shares are recognised by their sums, with a
    :class:`~snefy_ldl.errors.LabelWarning`; rows without labels are skipped. What columns are (numbers, categories,
    dates, names of rows) is for ``fit`` to find out.

    Args:
        path: The file, in the format of its extension: ``.csv``, ``.tsv``, also ``.gz``, ``.xlsx`` or ``.parquet``.
            Separator, decimal sign and encoding of text are detected.
        labels: Columns that hold the label distribution, as a list or a comma-separated string.
        features: Columns to use as features; by default every other column.
        counts: The label columns hold vote counts ``k``; ``D`` becomes the proportions ``k / Σ k``.
        normalize: The label columns hold amounts; each row is divided by its sum.
        sheet: Sheet of a workbook, its name or its number from 1; the first by default.

    Returns:
        The rows, as DataFrames with the columns' names, which models keep; labels lose the unit in which they came.
        ``name`` is the file's name without the extension. Features of a Parquet file with more than 16 million of them
        are float32, as networks use them.

    Raises:
        InputError: A column is missing, or the labels break a rule; the message names file, row and column.
        DataNotFoundError: There is no such file.
        ImportError: pandas or pyarrow is not installed, or openpyxl for Excel.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = pathlib.Path(folder.name) / "soil.csv"
    >>> _ = file.write_text("depth,sand,silt,clay\n10,0.5,0.3,0.2\n20,0.1,0.3,0.6\n")
    >>> load_table(file, labels="sand,silt,clay")
    Dataset('soil': 2 rows, 1 features, 3 labels (sand, silt, clay))
    >>> folder.cleanup()
    """
    file = Path(path).expanduser()
    source = TableSource(file, sheet)
    label_names = source.need(labels, "labels")
    others = [column for column in source.columns if column not in label_names]
    feature_names = others if features is None else source.need(features, "features")
    form: Any = "counts" if counts else "shares"
    rows = read_labelled(source, label_names, feature_names, form=form, normalize=normalize)
    for note in rows.notes:
        if note not in source.notes:
            warnings.warn(f"{file.name}: {note}.", LabelWarning, stacklevel=2)
    import pandas  # an extra, loaded by the table already

    label_names = plain_names(label_names) if rows.unit is not None else label_names
    known = pandas.DataFrame(rows.labels, columns=label_names)
    return Dataset(
        X=rows.features,
        D=known.div(known.sum(axis=1), axis=0) if rows.are_counts else known,
        counts=known if rows.are_counts else None,
        label_names=label_names,
        feature_names=feature_names,
        name=file.name.split(".")[0],
        source=str(file),
        unit=rows.unit,
    )


_PYLDL = "https://raw.githubusercontent.com/SpriteMisaka/PyLDL/082937638e075b35d349a2e69e36219d52512dc8/datasets/"
_GLERB = "https://raw.githubusercontent.com/Yunan-Lu/GLERB/53d27ba16807e2c3f2caba7f3bd7b79e66a141bc/datasets/"
_LICENCE = (
    "None stated by the source. Part of Xin Geng's LDL data sets (PALM lab); "
    "cite X. Geng, Label Distribution Learning, IEEE TKDE 28(7), 2016."
)
_EMOTIONS = ("happiness", "sadness", "surprise", "anger", "disgust", "fear")
_SCENES = ("plant", "sky", "cloud", "snow", "building", "desert", "mountain", "water", "sun")


@dataclass(frozen=True)
class _Entry:
    """One named set.

    Args:
        file: Name of its file.
        sha256: Checksum of the file.
        label_names: Names of its labels.
        url: Pinned address to fetch it from.
    """

    file: str
    sha256: str
    label_names: tuple[str, ...]
    url: str = ""

    @property
    def address(self) -> str:
        return self.url or _PYLDL + self.file


_REGISTRY = {
    "movie": _Entry(
        "Movie.mat",
        "5c8629905fdf18640410d43b30f1a84c17473df38e48f279f5a2af11019a1bac",
        tuple(f"rating_{i}" for i in range(1, 6)),
    ),
    "natural_scene": _Entry(
        "Natural_Scene.mat",
        "a0398a8277cae4fa80415763e92ab973d531ac2a8048264d243cbe8103dfd65a",
        _SCENES,
        f"{_GLERB}ns.mat",
    ),
    "sbu_3dfe": _Entry("SBU_3DFE.mat", "59dec80525aaa859b8400a92e5b94e54b405ce6ed60bfad9ec95e58964e84707", _EMOTIONS),
    "sjaffe": _Entry("SJAFFE.mat", "bdd53fb033a275b39b8fd873809cd69f3cee13234f5aa472aea0f5ad73b8a04b", _EMOTIONS),
    "yeast_alpha": _Entry(
        "Yeast_alpha.mat",
        "8b7f7788371326776299407785a5520cd05b194f57cf3babdeb21fe3d4281167",
        tuple(f"alpha_{i}" for i in range(18)),
    ),
    "yeast_spo5": _Entry(
        "Yeast_spo5.mat",
        "24e55ad6a9e68fcf80880e526c617ef44bd496022b99e49e397356e6b5e520ad",
        tuple(f"spo5_{i}" for i in range(3)),
    ),
}


def dataset_names() -> list[str]:
    """Names that :func:`load_dataset` accepts.

    Returns:
        The names in alphabetical order.

    >>> dataset_names()
    ['movie', 'natural_scene', 'sbu_3dfe', 'sjaffe', 'yeast_alpha', 'yeast_spo5']
    """
    return sorted(_REGISTRY)


def load_dataset(name: str) -> Dataset:
    """One of the public label distribution data sets, by name; see :func:`dataset_names`.

    The file is taken from the folder that ``SNEFY_LDL_DATA`` names; otherwise it is fetched once and kept in
    ``SNEFY_LDL_CACHE``, by default a folder ``snefy_ldl`` in the platform's cache folder.

    Args:
        name: The data set; capitals and hyphens do not matter.

    Returns:
        Its features and label distributions; no set comes with votes.

    Raises:
        InputError: The name is unknown, or a local file is not the file that was published.
        DataNotFoundError: The file is nowhere and could not be fetched; the message names the folder for it.

    >>> load_dataset("sjafe")
    Traceback (most recent call last):
    ...
    snefy_ldl.errors.InputError: unknown data set 'sjafe'; did you mean 'sjaffe'? Known: movie, natural_scene, \
sbu_3dfe, sjaffe, yeast_alpha, yeast_spo5.
    """
    key = str(name).lower().replace("-", "_").replace(" ", "_")
    if key not in _REGISTRY:
        near = difflib.get_close_matches(key, _REGISTRY, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"unknown data set {name!r}; {hint}Known: {', '.join(dataset_names())}.")
    entry = _REGISTRY[key]
    content = scipy.io.loadmat(_find_file(key, entry))
    X = np.asarray(content["features"], dtype=np.float64)
    D, _ = check_distributions(content.get("labels", content.get("label_distribution")), n_rows=len(X))
    return Dataset(
        X=X,
        D=D,
        label_names=list(entry.label_names),
        feature_names=[f"feature_{i}" for i in range(X.shape[1])],
        name=key,
        source=entry.address,
        licence=_LICENCE,
    )


def _find_file(name: str, entry: _Entry) -> Path:
    """The set's file: in the user's folder, or fetched by pooch, which keeps it and checks it."""
    mine = os.environ.get("SNEFY_LDL_DATA")
    for path in () if mine is None else (Path(mine) / entry.file, Path(mine) / "ldl" / entry.file):
        if path.expanduser().is_file():
            content = path.expanduser().read_bytes()
            if (found := hashlib.sha256(content).hexdigest()) == entry.sha256:
                return path.expanduser()
            raise InputError(
                f"{path} is not the published {entry.file}: its SHA-256 is {found}, expected {entry.sha256}. It may be "
                f"truncated or another version; get it again from {entry.address}."
            )
    try:
        import pooch  # an extra

        cache = os.environ.get("SNEFY_LDL_CACHE") or pooch.os_cache("snefy_ldl")
        return Path(pooch.retrieve(entry.address, f"sha256:{entry.sha256}", entry.file, Path(cache).expanduser()))
    except ImportError:
        reason = 'and fetching it needs pooch: pip install "snefy-ldl[data]"'
    except (OSError, ValueError) as error:
        reason = f"and could not be fetched: {error}"
    raise DataNotFoundError(
        f"data set {name!r} is not in SNEFY_LDL_DATA ({mine or 'not set'}), {reason}. Get it from {entry.address}, "
        f"name it {entry.file}, and put it into a folder that SNEFY_LDL_DATA names."
    )
