"""What every benchmark shares: the machine in words, medians, result files, and which version wrote them.

python benchmarks/common.py stamp density.json density.md     # after a script that does not stamp its files itself
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
#: Which version of the library wrote each result file, with a digest of the file as it was then.
VERSIONS = RESULTS / "versions.json"


def machine(threads: int | None = None) -> dict[str, Any]:
    """Processor, threads and versions."""
    import numpy
    import scipy
    import sklearn
    import torch

    name = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    facts = {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": threads or torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name(0)
    return facts


def area_under_curve(n_labeled: Any, curve: Any) -> Any:
    """Mean height of a learning curve (R, T), by trapezoids over the number of labels (T,)."""
    import numpy as np

    x, y = np.asarray(n_labeled, dtype=np.float64), np.asarray(curve, dtype=np.float64)
    return np.trapezoid(y, x, axis=-1) / (x[-1] - x[0])


def median_seconds(work: Callable[[], Any], repeats: int = 5, warm: int = 1) -> float:
    """Median wall-clock time of a few repeats after a warm-up."""
    for _ in range(warm):
        work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def markdown(rows: list[dict[str, Any]]) -> str:
    """A Markdown table of dicts with the same keys."""
    keys = list(rows[0])
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    lines += ["| " + " | ".join(str(row[key]) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def write(name: str, facts: dict[str, Any], text: str, measured: bool = True) -> None:
    """Result files: JSON for programs, Markdown for people."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(text.rstrip() + "\n")
    stamp(f"{name}.json", f"{name}.md", measured=measured)
    print(text)


def digest(path: Path) -> str:
    """Hash of a file's content."""
    return hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()


def stamp(*names: str, measured: bool = True) -> None:
    """Record the digests of these files of the results folder; if measured, by the library as it is."""
    import snefy_ldl
    from refresh import origin

    known = json.loads(VERSIONS.read_text()) if VERSIONS.exists() else {}
    for name in names:
        about = origin(name) if measured else known.get(name, {})
        known[name] = {"snefy_ldl": snefy_ldl.__version__, "digest": ""} | about | {"digest": digest(RESULTS / name)}
    kept = {name: known[name] for name in sorted(known) if (RESULTS / name).exists()}
    VERSIONS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "stamp":
        sys.exit(__doc__)
    stamp(*sys.argv[2:])
