"""The numbers of a fit, the neighbours that each is compared with, and the tables on which it acts.

A case is "kind table@rows words": training rows are drawn from a table so that thresholds on rows act; ``/1`` draws one
vote per item, ``city`` and ``made`` are made-up (of ``made`` the words are the size of the effects and the labels).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Threshold:
    """One number.

    Args:
        part: of the result.
        home: ``"policy"``, a class whose constructor takes it, or the module that holds it.
        name: of the field, argument or constant.
        others: its neighbours, by what they are called.
        cases: where it is tried, and on how many splits.
        note: why it is not.
    """

    part: str
    home: str
    name: str
    others: dict[str, Any] = field(default_factory=dict)
    cases: tuple[tuple[str, int], ...] = ()
    note: str = ""

    @property
    def key(self) -> str:
        """Its name, with its home outside the policy."""
        return self.name if self.home == "policy" else f"{self.home.rpartition('.')[2]}.{self.name}"


THRESHOLDS: dict[str, Threshold] = {}
#: Fields of the policy that no benchmark distinguishes from their neighbours: their values, and what is in their place.
GONE = {
    "feature_rows": (
        "100",
        "Fewer rows try features, too: without it -.004 ± .02 nats on ArcticLake, +.02 ± .02 on HouseholdExp and "
        "+.09 ± .06 on 40 rows of SJAFFE.",
    ),
    "background_labels": (
        "15",
        "It is now the same number as `many_labels`, 15 instead of 20: with 18 labels +.03 ± .03 nats on "
        "GEMAS_elements, no difference on Yeast_alpha, and two thirds of the time.",
    ),
    "background_share": ("0.02", "One constant of the network has the share, and the prior of the share."),
    "weight_steps": (
        "10",
        "Guides are averaged without weights: -.02 ± .02, +.01 ± .02 and +.05 ± .17 nats on three sets of votes, "
        "+.06 ± .04 on ECAM, +.01 ± .03 on made-up groups.",
    ),
    "lowest_mean": ("1e-4", "The average of the guides is above zero as it is."),
    "usual_spread_errors": ("(1.0, 0.5)", "The likelihood of one vote per item does not depend on the spread."),
    "least_groups": ("4", "Two groups are enough."),
    "least_gain": ("1.0", "Groups have a model of their rows, which is made if they differ."),
    "epochs_before_groups": ("1/3", "Groups have a model of their rows instead of a second training step."),
    "group_epochs": ("(0.6, 0.4)", "The same."),
    "many_group_rows": ("20,000", "The same."),
    "scout_trees": ("50", "The same; no two forests are compared first."),
    "least_part": ("1/3", "The same."),
}


def cases(text: str, splits: int) -> tuple[tuple[str, int], ...]:
    """Cases separated by commas, all on as many splits."""
    return tuple((case.strip(), splits) for case in text.split(",") if case.strip())


def add(part: str, home: str, name: str, others: Any, *where: tuple[tuple[str, int], ...], note: str = "") -> None:
    """Put one threshold on the list; neighbours that are not named are called by their value."""
    named = others if isinstance(others, dict) else {str(other): other for other in others}
    one = Threshold(part, home, name, named, tuple(dict.fromkeys(sum(where, ()))), note)
    THRESHOLDS[one.key] = one


# -- shares ----------------------------------------------------------------------------------------------------------

FEW = cases("square SJAFFE, square Jura, square SBU_3DFE@350, square Yeast_spo5@350", 4)
MORE = cases("square SBU_3DFE@600, square Yeast_spo5@600, square GEMAS_texture@600, square Natural_Scene@600", 3)
MORE += cases("square IMDb_movies@600, square Swiss_branded_foods@600", 3)
WIDE_LABELS = cases("square GEMAS_elements@600, square Yeast_alpha@600", 3)
SOME = cases("square SJAFFE, square Jura", 4) + MORE[:4] + WIDE_LABELS[:1]

TINY = cases("square SJAFFE@{0}, square Jura@{0}, square GEMAS_texture@{0}, square SBU_3DFE@{0}", 6)


def tiny(rows: int) -> tuple[tuple[str, int], ...]:
    """Four tables cut to so many rows."""
    return tuple((case.format(rows), splits) for case, splits in TINY)


add("shares", "policy", "least_rows", (6, 24), tiny(9), tiny(16))
few = "square SBU_3DFE@{0}, square Yeast_spo5@{0}, square GEMAS_texture@{0}, square Natural_Scene@{0}"
few += ", square IMDb_movies@{0}"
add("shares", "policy", "few_rows", (250, 1000), *(cases(few.format(rows), 4) for rows in (350, 700)))
add("shares", "policy", "folds", (3, 10), FEW, cases("square Mite_peat", 4))
labels = "square GEMAS_elements@600, square Yeast_alpha@600, square GEMAS_elements@350, square Yeast_alpha@350"
many = "square ECAM_infant_microbiome, square Mite_peat"
add("shares", "policy", "many_labels", (10, 40), cases(labels, 4), cases(many, 6))
wide = "square SBU_3DFE@600, square Natural_Scene@600, square Movie@600"
add("shares", "policy", "wide", (150, 2500), cases(wide, 4))
add("shares", "policy", "members", (1, 2, 6), MORE)
add("shares", "networks.net", "EXPONENT_RATE", (5.0, 10.0, 40.0), SOME)
sizes = {
    "half": ((8, 200), (16, 500), (32, 10_000), (64, 40_000), (128, 85_000), (512, 400_000)),
    "double": ((32, 200), (64, 500), (128, 10_000), (256, 40_000), (512, 85_000), (2048, 400_000)),
    "limits halved": ((16, 100), (32, 250), (64, 5_000), (128, 20_000), (256, 42_500), (1024, 200_000)),
    "limits doubled": ((16, 400), (32, 1000), (64, 20_000), (128, 80_000), (256, 170_000), (1024, 800_000)),
    "32 below 500 rows": ((32, 500), (64, 10_000), (256, 85_000), (1024, 400_000)),
}
large = cases("square city@7000", 2) + cases("square city@20000, square city@40000", 1)
add("shares", "policy", "batch_limits", sizes, SOME, cases("square SJAFFE@75", 4), large)
add("shares", "policy", "doubled_batch", {"off": 0, "32": 32, "128": 128}, SOME, large[:1])
add("shares", "policy", "doubled_rate", (1.0, 2.4), MORE)
add("shares", "networks.net", "CONCENTRATION_RANGE", ((1.0, 8.0), (1.0, 128.0), (0.25, 32.0), (4.0, 32.0)), SOME)
clips = {"halved": {"unit": 2.5, "pooled": 2.0}, "doubled": {"unit": 10.0, "pooled": 8.0}}
add("shares", "networks.backbones", "LIMITS", clips, SOME)
add("shares", "SnefyLDL", "n_neurons", (32, 128), SOME)
add("shares", "SnefyLDL", "n_readouts", (8, 64), SOME)
add("shares", "SnefyLDL", "hidden_sizes", ((32,), (128,), (64, 64)), SOME)
add("shares", "SnefyLDL", "epochs", (15, 60), SOME)
add("shares", "SnefyLDL", "learning_rate", (2.5e-3, 1e-2), SOME)
add("shares", "SnefyLDL", "weight_decay", (0.1, 10.0), SOME)
add("shares", "SnefyLDL", "validation_fraction", (0.08, 0.3), MORE)

# -- guides ----------------------------------------------------------------------------------------------------------

add("guides", "policy", "trees", ((50, 25), (100, 50), (400, 200)), SOME)
add("guides", "policy", "folds_of_guides", ((5, 3, 2), (20, 10, 6)), SOME)
cells = "square SBU_3DFE@1250, square Natural_Scene@1000, square Movie@500"
add("guides", "policy", "many_cells", (290_000, 1_200_000), cases(cells, 3))
add("guides", "policy", "guide_rows", (10_000, 40_000), cases("square city@15000, square city@40000", 2))

# -- large tables ----------------------------------------------------------------------------------------------------

add("large", "policy", "member_rows", (5_000, 20_000), cases("square city@7000, square city@15000", 3))
cities = cases("square city@40000", 2), cases("square city@110000", 1)
add("large", "policy", "large_rows", (35_000, 200_000), *cities)
add("large", "policy", "largest_batch", (), note="needs 400,000 rows, a fit of some minutes; benchmarks/waits_scale.py")

# -- votes -----------------------------------------------------------------------------------------------------------

ONE = cases("votes ChaosNLI_SNLI/1@300, votes LIDC/1@300, votes KonIQ10k/1@300", 4)
TWO = cases("votes ChaosNLI_SNLI/2@300, votes LIDC/2@300, votes KonIQ10k/2@300", 4)
ALL = cases("votes ChaosNLI_SNLI@300, votes LIDC@300, votes KonIQ10k@300", 3)
SEVEN = cases("votes ChaosNLI_SNLI/7@300, votes KonIQ10k/7@300", 3)
UNGUIDED = cases("votes ChaosNLI_SNLI/1@300 unguided, votes LIDC/1@300 unguided", 4)
add("votes", "policy", "single_votes", {"0 (off)": 0.0, "2.5": 2.5}, ONE, TWO)
add("votes", "policy", "completed_votes", (16, 64), ONE)
add("votes", "policy", "part_of_vote", (0.02, 0.5), ONE, TWO, ALL)
spreads = {f"{a}, {b}": (math.log(a), b) for a, b in ((0.6, 0.5), (2.5, 0.5), (1.25, 0.0), (1.25, 1.0))}
add("votes", "policy", "usual_spread", spreads, ONE)
add("votes", "policy", "vote_rate", (0.2, 0.8), ONE, SEVEN, ALL)
add("votes", "policy", "half_votes", (3.0, 30.0), ONE, TWO, SEVEN, ALL)
add("votes", "policy", "most_sharpness", (4.0, 64.0), ONE, TWO, ALL)
add("votes", "policy", "widest_start", (0.25, 1.0), UNGUIDED, ONE)

# -- groups of rows --------------------------------------------------------------------------------------------------

MADE = cases("groups made@200 0.5, groups made@200 0.2", 6)
NONE = cases("groups made@200 0, groups made@200 0 12", 6)
REAL = cases("groups ECAM", 3) + cases("groups GEMAS@600, groups GEMAS@600 without place", 2)
FOUND = cases("groups made@200 0.5, groups made@200 0.2, groups made@200 0.5 12", 5) + REAL
add("groups", "policy", "most_directions", (2, 16), cases("groups made@400 0.5 12, groups ECAM", 4))
add("groups", "policy", "least_ratio", (0.0, 12.0), MADE, NONE, REAL)
add("groups", "policy", "shuffles", (1, 20), MADE, NONE, REAL)
add("groups", "policy", "pull", {"0.02, 0.05": (0.02, 0.05), "0.3, 0.5": (0.3, 0.5)}, FOUND)
add("groups", "training.group_effects", "RIDGE", (1e-4, 1e-2), FOUND)
add("groups", "training.group_effects", "RATIO_RANGE", ((-6.0, 4.0), (-12.0, 8.0)), FOUND)

# -- streams, and machines -------------------------------------------------------------------------------------------

PASSES = cases("passes city@2000, passes city@10000, passes IMDb_movies, passes Yeast_alpha", 4)
ONCE = cases("stream city@4000 once, stream city@40000 once", 3)
STREAM = cases("stream city@10000, stream IMDb_movies", 3)
add("streams", "policy", "one_pass_rate", (0.1, 0.4), PASSES)
add("streams", "policy", "stream_batch", (128, 512), STREAM, ONCE)
add("streams", "policy", "warm_up", (30, 300), STREAM, ONCE)
add("streams", "policy", "plateau", (300, 3000), STREAM, ONCE)
add("machines", "policy", "stack", {"8": (8, 1024), "32": (32, 1024)}, cases("many SJAFFE, many Yeast_spo5@300", 3))
add("machines", "policy", "shared_products", (), note="time alone, with several threads on a busy machine")

# -- log-ratios ------------------------------------------------------------------------------------------------------

WHOLE = cases("ratios SJAFFE, ratios SBU_3DFE@350, ratios GEMAS_elements@350, ratios Natural_Scene@350", 3)
ZEROS = cases("ratios ECAM_infant_microbiome@300 zeros, ratios Mite_peat zeros", 3)
ZEROS += cases("ratios Swiss_branded_foods@350 zeros, ratios IMDb_movies@350 zeros", 3)
BOTH = (WHOLE[1], *WHOLE[2:], ZEROS[0], *ZEROS[2:])
BIG = cases("ratios Natural_Scene@1000, ratios Swiss_branded_foods@1500 zeros", 2)
add("log-ratios", "LogRatioLDL", "n_components", (24, 96), BOTH)
add("log-ratios", "LogRatioLDL", "n_trees", (50, 200), WHOLE, ZEROS)
add("log-ratios", "LogRatioLDL", "max_iter", (100, 400, 3000), BOTH, BIG)
add("log-ratios", "logratio", "N_FOLDS", (3, 10), WHOLE, ZEROS)
FOLDED = cases("ratios SBU_3DFE@700, ratios GEMAS_texture@700, ratios Swiss_branded_foods@700 zeros", 3)
add("log-ratios", "logratio", "FEW_ROWS", (250, 1000), WHOLE[1:], FOLDED)
add("log-ratios", "logratio", "FEW_ROWS_FOLDS", (5, 20), WHOLE, ZEROS)
small = "ratios Jura@{0}, ratios GEMAS_texture@{0}, ratios SJAFFE@{0}"
add("log-ratios", "logratio", "FEWEST_ROWS", (5, 16), cases(small.format(6), 5), cases(small.format(12), 5))
add("log-ratios", "logratio", "MOST_AXES", (8, 16, 64), ZEROS[:2])
add("log-ratios", "logratio", "PRIOR_NEIGHBOURS", (0.5, 8.0), ZEROS)
add("log-ratios", "logratio", "INPUT_CLIP", (2.0, 8.0), BOTH)
add("log-ratios", "logratio", "ABSENT_ROUNDS", (1, 6), ZEROS)
for constant in ("ROUNDS", "CANDIDATES", "COPIES", "FEWEST_TIES", "TIED_ROWS"):
    add("log-ratios", "logratio", constant, (), note="of hidden parts: benchmarks/below.py")
finer = {"coarser": np.array([0.0, 0.01, 0.12, 0.55, 1.0]), "one": np.array([0.0, 1.0])}
add("log-ratios", "networks.mixture", "PRECISION_BINS", finer, WHOLE, ZEROS)
for constant, others in {
    "OTHER_WEIGHT": (0.1, 0.4),
    "LARGEST_OFFSET": (0.5, 0.98),
    "N_HIDDEN": (32, 128),
    "FAST_RATE": (5e-3, 2e-2),
    "SLOW_RATE": (5e-4, 2e-3),
    "WEIGHT_DECAY": (0.1, 3.0),
    "WARM_UP": (5, 80),
    "GRADIENT_NORM": (1.0, 25.0),
    "LOOK_EVERY": (2, 15),
    "PATIENCE": (60, 240),
    "SMALLEST_TERM": (-20.0, -80.0),
}.items():
    add("log-ratios", "networks.mixture", constant, others, BOTH)
add("log-ratios", "networks.mixture", "TURN_RATE", (3e-4, 3e-3), WHOLE)
add("log-ratios", "networks.mixture", "MEAN_WEIGHT", (0.0, 2.0, 12.0), WHOLE)
add("log-ratios", "networks.mixture", "MEAN_ROWS", (16, 96), WHOLE)
add("log-ratios", "networks.mixture", "N_PATTERNS", (2, 16), ZEROS)
add("log-ratios", "networks.mixture", "FIRST_ODDS", (0.2, 1.5), ZEROS)
add("log-ratios", "networks.mixture", "BATCH_ROWS", (256, 1024), BIG)
penalties = {"every other": np.geomspace(1e-3, 1e5, 13), "1e-1 to 1e4": np.geomspace(1e-1, 1e4, 16)}
add("log-ratios", "learners.ratio_guides", "RIDGE_PENALTIES", penalties, WHOLE, ZEROS)
for constant, others in {
    "PAST_BEST": (1.0, 1.2),
    "SCORE_KNOTS": (50, 800),
    "NET_HIDDEN": (32, 128),
    "NET_PASSES": (15, 60),
    "NET_STEPS": (12, 50),
    "NET_ROWS": (32, 128),
    "NET_RATE": (2e-3, 1e-2),
    "NET_DECAY": (0.01, 1.0),
}.items():
    add("log-ratios", "learners.ratio_guides", constant, others, BOTH)
add("log-ratios", "learners.ratio_guides", "FOREST_TARGETS", (6, 48), cases("ratios GEMAS_elements@350", 3), ZEROS[:2])
add("log-ratios", "learners.ratio_guides", "FOREST_ROWS", (), note="needs 20,000 rows, for memory and time alone")
grids = {"SHRINKAGES": 2, "FREEDOMS": 3, "FACTORS": 3}
values = {
    "SHRINKAGES": np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0]),
    "FREEDOMS": np.array([2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0, 100.0, 1e4]),
    "FACTORS": np.geomspace(0.4, 1.5, 14),
}
for constant, step in grids.items():
    coarse = {f"every {step}": values[constant][::step], "the middle": values[constant][3:-3]}
    add("log-ratios", "learners.log_amounts", constant, coarse, WHOLE, ZEROS)
add("log-ratios", "learners.log_amounts", "EM_STEPS", (6, 24), ZEROS)
for constant, others in {
    "SPHERE_ROWS": (0.5, 8.0),
    "EQUAL_WEIGHT_ROWS": (1.0, 25.0),
    "SAME_WEIGHT_ROWS": (20.0, 320.0),
    "SHARE_WEIGHT": (0.0, 1.0, 4.0),
}.items():
    add("log-ratios", "learners.log_amounts", constant, others, WHOLE, ZEROS)

# -- the choice between both distributions ---------------------------------------------------------------------------

CHOICE = (
    "auto SJAFFE, auto Jura, auto SBU_3DFE@350, auto Yeast_spo5@350, auto GEMAS_texture@350, auto Natural_Scene@350"
)
add("choice", "auto", "LEAST_LEAD", (0.0, 2.0), cases(CHOICE, 4))
add(
    "choice",
    "auto",
    "FEWEST_ROWS",
    (6, 24),
    cases("auto Jura@9, auto GEMAS_texture@9, auto Jura@16, auto SJAFFE@16", 5),
)
add("choice", "auto", "ZERO_ROWS", (), note="densities with and without zeros are no densities of the same thing")

for name in GONE:
    THRESHOLDS.pop(name, None)
