"""Communities and Crime: violent crime in US communities (Redmond 2009, UCI)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from accountant.errors import InputError
from privfair.datasets.assembly import assemble_table
from privfair.datasets.columns import Numeric, numbers
from privfair.datasets.downloads import Dataset, SourceFile, require
from privfair.datasets.records import Federation, SensitiveAttribute
from privfair.datasets.table import flag, read_table, whole_number

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/communities/"
DATA = SourceFile(
    "communities.data",
    "09e0b5c07eae24c1efab19b2edee05e160e7f5743b6f31e31eec3d73624da2ea",
    1102815,
    (_UCI + "communities.data",),
)
NAMES = SourceFile(
    "communities.names",
    "80914f24ab37261fb0fbda7e417cad8001335dadda4a8d702c265601ef8434fc",
    27179,
    (_UCI + "communities.names",),
)
LABEL, ATTRIBUTE = "ViolentCrimesPerPop", "racepctblack"
NATIONAL_AVERAGE = 0.24  # mean of the label and
MEDIAN_PERCENT_BLACK = 0.06  # median of the attribute as communities.names publishes them
VALUES = ("at most median", "above median")
NOT_FEATURES = frozenset(
    f"""
    {LABEL} state county community communityname fold OtherPerCap
    LemasSwornFT LemasSwFTPerPop LemasSwFTFieldOps LemasSwFTFieldPerPop LemasTotalReq LemasTotReqPerPop
    PolicReqPerOffic PolicPerPop RacialMatchCommPol PctPolicWhite PctPolicBlack PctPolicHisp PctPolicAsian PctPolicMinor
    OfficAssgnDrugUnits NumKindsDrugsSeiz PolicAveOTWorked PolicCars PolicOperBudg LemasPctPolicOnPatr
    LemasGangUnitDeploy PolicBudgPerPop
    """.split()
)


def load(
    *, seed: int = 0, test_fraction: float = 0.25, min_communities: int = 4, attribute_as_feature: bool = True
) -> Federation:
    """US communities at one client per state; sensitive: share of Black residents; label: much violent crime.

    Label: 1 iff ViolentCrimesPerPop is at least 0.24, the mean over all 1,994 communities ("national average").
    Sensitive: racepctblack above 0.06, its median. Both thresholds are those that the published description states;
    as the file has two decimals they give the same labels and groups as mean and median of the file itself.
    Features: the 99 numbers without missing values (neither the survey of police departments nor OtherPerCap, which
    have some), published on the range 0 to 1, mapped to [−1, 1].
    Clients: states, named by their FIPS number. Options: `min_communities`, the fewest communities of a state that
    takes part: 4 as in Rychener, Kuhn & Hu (AISTATS 2025; 42 states, 1,988 rows), 5 as in their code (41 states, 1,984
    rows); `attribute_as_feature`: racepctblack is one of the 99 features (in the paper it is), or not (98).
    Leaving out small states depends on the records: a simulation.
    """
    fewest = whole_number("min_communities", min_communities, at_least=1)
    with_attribute = flag("attribute_as_feature", attribute_as_feature)
    names_path, names_notes = require("communities", NAMES)
    data_path, data_notes = require("communities", DATA)
    names = [
        line.split()[1]
        for line in names_path.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.startswith("@attribute")
    ]
    if not {"state", LABEL, ATTRIBUTE} <= set(names):
        remedy = "Run `privfair data fetch communities`."
        raise InputError(
            f"file {NAMES.name}", f"must declare state, {LABEL}, {ATTRIBUTE}", f"{len(names)} columns", remedy
        )
    whole = read_table(data_path, columns=names)
    states = Counter(whole.column("state"))
    table = whole.where(states[state] >= fewest for state in whole.column("state"))
    features = [name for name in names if name not in NOT_FEATURES and (with_attribute or name != ATTRIBUTE)]
    left_out = sum(count < fewest for count in states.values())
    dropped = f"{len(whole) - len(table)} rows dropped: {left_out} states with fewer than {fewest} communities."
    return assemble_table(
        "communities",
        table,
        columns=[Numeric(name, 0.0, 1.0) for name in features],
        label=f"{LABEL} at least {NATIONAL_AVERAGE}",
        labels=np.greater_equal(numbers(table.column(LABEL)), NATIONAL_AVERAGE),
        sensitive=[
            (
                SensitiveAttribute(f"{ATTRIBUTE} above {MEDIAN_PERCENT_BLACK}", VALUES),
                np.greater(numbers(table.column(ATTRIBUTE)), MEDIAN_PERCENT_BLACK),
            )
        ],
        client_of=[f"state {state:0>2}" for state in table.column("state")],
        seed=seed,
        test_fraction=test_fraction,
        notes=(*names_notes, *data_notes, dropped),
    )


DATASET = Dataset(
    name="communities",
    description="violent crime in 1,994 US communities; clients by state, fairness by share of Black residents",
    source="https://archive.ics.uci.edu/dataset/183/communities+and+crime",
    licence="CC BY 4.0 (UCI)",
    load=load,
    files=(DATA, NAMES),
)
