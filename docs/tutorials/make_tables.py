"""Write the made-up tables of the tutorials next to this file: ``python docs/tutorials/make_tables.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
ROCKS = {"granite": 0.9, "sandstone": 1.3, "lime": -0.3, "marl": -0.8}


def soil(n: int, seed: int, first: int) -> pd.DataFrame:
    """Samples of topsoil: rock, rain, slope, pH and depth, and sand, silt and clay in percent."""
    rng = np.random.default_rng(seed)
    rock = rng.choice(list(ROCKS), n)
    rain, slope = rng.normal(800, 160, n).round(), rng.gamma(2.0, 3.0, n).round(1)
    depth = rng.choice([10, 20, 40], n)
    logs = np.stack(
        [
            0.5 + np.vectorize(ROCKS.get)(rock) + 0.04 * slope - 0.01 * depth,
            0.8 - 0.001 * (rain - 800),
            0.4 + 0.02 * depth + 0.0012 * (rain - 800),
        ],
        axis=1,
    )
    parts = rng.gamma(9.0 * np.exp(logs) / np.exp(logs).sum(1, keepdims=True))
    percent = (100 * parts / parts.sum(1, keepdims=True)).round(1)
    ph = pd.Series((6 + 0.8 * (rock == "lime") + rng.normal(0, 0.5, n)).round(1)).where(rng.random(n) > 0.06)
    table = pd.DataFrame(
        {"sample_id": [f"S{first + i:04d}" for i in range(n)], "rock": rock, "rain": rain, "slope": slope}
    )
    table["depth_cm"], table["ph"] = depth, ph
    return table.assign(sand=percent[:, 0], silt=percent[:, 1], clay=percent[:, 2])


def main() -> None:
    """Write soil.csv, held.csv and new.csv."""
    soil(180, 0, 1).to_csv(HERE / "soil.csv", index=False)
    soil(90, 1, 181).to_csv(HERE / "held.csv", index=False)
    soil(12, 2, 271).drop(columns=["sand", "silt", "clay"]).to_csv(HERE / "new.csv", index=False)


if __name__ == "__main__":
    main()
