"""Named public data sets, with checksums.

A named set is looked for in the folder ``SNEFY_LDL_DATA``, then in the cache (``SNEFY_LDL_CACHE``, or the platform's
cache folder), then fetched once from its pinned public source. Its SHA-256 is checked wherever it was found.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io

from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.datasets.dataset import Dataset
from snefy_ldl.errors import DataNotFoundError, InputError

__all__ = ["Dataset", "cache_folder", "dataset_names", "load_dataset"]

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
        url: Pinned address to fetch it from.
        sha256: Checksum of the file.
        label_names: Names of its labels.
        label_key: Variable of the file that holds the label distributions.
    """

    file: str
    url: str
    sha256: str
    label_names: tuple[str, ...]
    label_key: str = "labels"


def _pyldl(file: str, sha256: str, label_names: tuple[str, ...]) -> _Entry:
    return _Entry(file, _PYLDL + file, sha256, label_names)


def _numbered(stem: str, start: int, stop: int) -> tuple[str, ...]:
    return tuple(f"{stem}_{i}" for i in range(start, stop))


_REGISTRY: dict[str, _Entry] = {
    "movie": _pyldl(
        "Movie.mat",
        "5c8629905fdf18640410d43b30f1a84c17473df38e48f279f5a2af11019a1bac",
        _numbered("rating", 1, 6),
    ),
    "natural_scene": _Entry(
        "Natural_Scene.mat",
        _GLERB + "ns.mat",
        "a0398a8277cae4fa80415763e92ab973d531ac2a8048264d243cbe8103dfd65a",
        _SCENES,
        label_key="label_distribution",
    ),
    "sbu_3dfe": _pyldl("SBU_3DFE.mat", "59dec80525aaa859b8400a92e5b94e54b405ce6ed60bfad9ec95e58964e84707", _EMOTIONS),
    "sjaffe": _pyldl("SJAFFE.mat", "bdd53fb033a275b39b8fd873809cd69f3cee13234f5aa472aea0f5ad73b8a04b", _EMOTIONS),
    "yeast_alpha": _pyldl(
        "Yeast_alpha.mat",
        "8b7f7788371326776299407785a5520cd05b194f57cf3babdeb21fe3d4281167",
        _numbered("alpha", 0, 18),
    ),
    "yeast_spo5": _pyldl(
        "Yeast_spo5.mat",
        "24e55ad6a9e68fcf80880e526c617ef44bd496022b99e49e397356e6b5e520ad",
        _numbered("spo5", 0, 3),
    ),
}


def dataset_names() -> list[str]:
    """Names that :func:`load_dataset` knows.

    Returns:
        The names in alphabetical order.

    >>> dataset_names()
    ['movie', 'natural_scene', 'sbu_3dfe', 'sjaffe', 'yeast_alpha', 'yeast_spo5']
    """
    return sorted(_REGISTRY)


def cache_folder() -> Path:
    """Folder that fetched files are kept in: ``SNEFY_LDL_CACHE``, or ``snefy_ldl`` in the platform's cache folder.

    Returns:
        An absolute path; the folder need not exist yet.

    >>> cache_folder().is_absolute()
    True
    """
    if chosen := os.environ.get("SNEFY_LDL_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(base).expanduser() / "snefy_ldl").absolute()


def load_dataset(name: str) -> Dataset:
    """One of the public label distribution data sets, by name; see :func:`dataset_names`.

    Args:
        name: The data set; capitals and hyphens do not matter.

    Returns:
        Its features and label distributions; no set comes with votes.

    Raises:
        InputError: The name is unknown, or a local file is not the file that was published.
        DataNotFoundError: The file is nowhere and could not be fetched; the message says where to put it.

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
    D, _ = check_distributions(content[entry.label_key], n_rows=len(X))
    return Dataset(
        X=X,
        D=D,
        label_names=list(entry.label_names),
        feature_names=[f"feature_{i}" for i in range(X.shape[1])],
        name=key,
        source=entry.url,
        licence=_LICENCE,
    )


def _find_file(name: str, entry: _Entry) -> Path:
    """The set's file: in the user's folder, in the cache, or fetched; what was looked at is said where all fail."""
    looked: list[str] = []
    if folder := os.environ.get("SNEFY_LDL_DATA"):
        for path in (Path(folder).expanduser() / entry.file, Path(folder).expanduser() / "ldl" / entry.file):
            if path.is_file():
                if _sha256(path) != entry.sha256:
                    raise InputError(
                        f"{path} is not the published {entry.file}: its SHA-256 is {_sha256(path)}, expected "
                        f"{entry.sha256}. It may be truncated or another version; get it again from {entry.url}."
                    )
                return path
            looked.append(f"{path} (none there)")
    else:
        looked.append("SNEFY_LDL_DATA (not set)")
    cached = cache_folder() / entry.file
    if cached.is_file():
        if _sha256(cached) == entry.sha256:
            return cached
        looked.append(f"{cached} (there, but its SHA-256 is wrong)")
    else:
        looked.append(f"{cached} (none there)")
    try:
        return _download(entry, cached.parent)
    except ImportError:
        looked.append('download (needs pooch: pip install "snefy-ldl[data]")')
    except (OSError, ValueError) as error:
        looked.append(f"download (failed: {error})")
    raise DataNotFoundError(
        f"data set {name!r} is not on this machine. Looked at: {'; '.join(looked)}. "
        f"Get it from {entry.url}, name it {entry.file}, and put it into {cached.parent} "
        "or into a folder that SNEFY_LDL_DATA names."
    )


def _download(entry: _Entry, folder: Path) -> Path:
    """Fetch to a temporary name, check the SHA-256, then rename: an interrupted download leaves nothing behind."""
    import pooch

    return Path(pooch.retrieve(entry.url, known_hash=f"sha256:{entry.sha256}", fname=entry.file, path=folder))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
