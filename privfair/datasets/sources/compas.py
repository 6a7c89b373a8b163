"""COMPAS: recidivism of defendants in Broward County, Florida (ProPublica 2016)."""

from __future__ import annotations

import numpy as np

from privfair.datasets.assembly import assemble_table
from privfair.datasets.columns import Categorical, Column, Numeric, numbers
from privfair.datasets.downloads import Dataset, SourceFile, require
from privfair.datasets.records import Federation, SensitiveAttribute
from privfair.datasets.table import Table, flag, read_table

FILE = SourceFile(
    "compas-scores-two-years.csv",
    "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
    2546489,
    ("https://raw.githubusercontent.com/propublica/compas-analysis/master/compas-scores-two-years.csv",),
)
RACE = Categorical("race", ("African-American", "Caucasian"), other=False)
AGE_GROUPS = ("Less than 25", "25 - 45", "Greater than 45")
FEATURES: tuple[Column, ...] = (
    Categorical("c_charge_degree", ("F", "M"), other=False),
    Categorical("sex", ("Female", "Male"), other=False),
    Numeric("age", 18, 96, "log"),
    Numeric("priors_count", 0, 38, "log1p"),
)


def load(*, seed: int = 0, test_fraction: float = 0.25, attribute_as_feature: bool = True) -> Federation:
    """5,278 defendants at three clients, by age group; sensitive: race; label: charged again within two years.

    Rows: ProPublica's filter (screened within 30 days of the arrest, recidivism known, no ordinary traffic offence),
    then African-American and Caucasian defendants, as in Rychener, Kuhn & Hu (AISTATS 2025).
    Features, the paper's eight: race, degree of the charge (F, M) and sex as two 0/1 columns each; age, ln on the
    public range 18 to 96; prior offences, ln(1 + x) on the public range 0 to 38; both then mapped to [−1, 1]. (The
    authors' code leaves age and priors unscaled.) Without `attribute_as_feature` race is not a feature, six are left,
    and fairness costs much more accuracy: the model then cannot correct for what priors and age reveal about race.
    Groups: 0 African-American, 1 Caucasian. The ranges are those of the published file, as constants of the loader.
    """
    with_race = flag("attribute_as_feature", attribute_as_feature)
    path, file_notes = require("compas", FILE)
    whole = read_table(path, one_name_twice=True)
    table = whole.where(_kept(whole))
    columns = (RACE, *FEATURES) if with_race else FEATURES
    dropped = f"{len(whole) - len(table)} of {len(whole)} rows dropped: ProPublica's filter, and races other than two."
    return assemble_table(
        "compas",
        table,
        columns=columns,
        label="two_year_recid",
        labels=numbers(table.column("two_year_recid")),
        sensitive=[(SensitiveAttribute("race", RACE.values), RACE.codes(table.column("race")))],
        client_of=table.column("age_cat"),
        order=AGE_GROUPS,
        seed=seed,
        test_fraction=test_fraction,
        notes=(*file_notes, dropped),
    )


def _kept(table: Table) -> list[bool]:
    """For each row whether it is used: a rule about that row alone."""
    days = np.abs(numbers(table.column("days_b_screening_arrest"))) <= 30  # false where missing
    words = zip(
        table.column("is_recid"),
        table.column("c_charge_degree"),
        table.column("score_text"),
        table.column("race"),
        table.column("two_year_recid"),
        table.column("age_cat"),
        strict=True,
    )
    return [
        bool(near)
        and recidivism != "-1"
        and degree != "O"
        and score not in ("", "N/A")
        and race in RACE.values
        and label in ("0", "1")
        and age_group in AGE_GROUPS
        for near, (recidivism, degree, score, race, label, age_group) in zip(days, words, strict=True)
    ]


DATASET = Dataset(
    name="compas",
    description="recidivism of 5,278 defendants; clients by age group, fairness by race",
    source="https://github.com/propublica/compas-analysis",
    licence="public records published by ProPublica without a licence; the file holds names of persons",
    load=load,
    files=(FILE,),
)
