"""Adult: income of persons in the 1994 US census (Becker & Kohavi 1996, UCI)."""

from __future__ import annotations

from collections.abc import Sequence

from privfair.datasets.assembly import assemble_table
from privfair.datasets.columns import OTHER, Categorical, Column, Numeric
from privfair.datasets.downloads import Dataset, SourceFile, require
from privfair.datasets.records import Federation, SensitiveAttribute
from privfair.datasets.table import Table, choice, flag, read_table, words

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
FILES = (
    SourceFile(
        "adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        3974305,
        (_UCI + "adult.data",),
    ),
    SourceFile(
        "adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        2003153,
        (_UCI + "adult.test",),
    ),
)
NAMES = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]
WORKCLASS = Categorical(
    "workclass",
    (
        "Private",
        "Self-emp-not-inc",
        "Self-emp-inc",
        "Federal-gov",
        "Local-gov",
        "State-gov",
        "Without-pay",
        "Never-worked",
    ),
)
OCCUPATION = Categorical(
    "occupation",
    (
        "Tech-support",
        "Craft-repair",
        "Other-service",
        "Sales",
        "Exec-managerial",
        "Prof-specialty",
        "Handlers-cleaners",
        "Machine-op-inspct",
        "Adm-clerical",
        "Farming-fishing",
        "Transport-moving",
        "Priv-house-serv",
        "Protective-serv",
        "Armed-Forces",
    ),
)
SENSITIVE = {
    "sex": Categorical("sex", ("Female", "Male"), other=False),
    "race": Categorical("race", ("White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other"), other=False),
}
CLIENTS = {"occupation": OCCUPATION, "workclass": WORKCLASS}
MARITAL = Categorical(
    "marital-status",
    (
        "Married-civ-spouse",
        "Divorced",
        "Never-married",
        "Separated",
        "Widowed",
        "Married-spouse-absent",
        "Married-AF-spouse",
    ),
)
RELATIONSHIP = Categorical(
    "relationship", ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried")
)
EDUCATION = Categorical(
    "education",
    (
        "Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th", "7th-8th",
        "12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool",
    ),
)  # fmt: skip
COUNTRY = Categorical(
    "native-country",
    (
        "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany", "Outlying-US(Guam-USVI-etc)",
        "India", "Japan", "Greece", "South", "China", "Cuba", "Iran", "Honduras", "Philippines", "Italy", "Poland",
        "Jamaica", "Vietnam", "Mexico", "Portugal", "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador",
        "Taiwan", "Haiti", "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia",
        "El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands",
    ),
)  # fmt: skip
# Edges of bins: five years; the classes of hours at work that the Bureau of Labor Statistics publishes from this
# survey; none, and round numbers of dollars.
AGES = tuple(range(20, 75, 5))
HOURS = (5, 15, 30, 35, 40, 41, 49, 60)
GAINS = (1, *range(1000, 11_000, 1000), 15_000, 20_000, 50_000)
LOSSES = (1, 1000, 1250, 1500, 1750, 2000, 2250, 2500, 3000)


def _numbers(money: str, *, bins: bool) -> tuple[Column, ...]:
    """The five numbers; `money`: how gains and losses are transformed."""
    return (
        Numeric("age", 17, 90, edges=AGES if bins else ()),
        Numeric("education-num", 1, 16),
        Numeric("hours-per-week", 1, 99, edges=HOURS if bins else ()),
        Numeric("capital-gain", 0, 99999, money, GAINS if bins else ()),
        Numeric("capital-loss", 0, 4356, money, LOSSES if bins else ()),
    )


CATEGORIES = (WORKCLASS, EDUCATION, MARITAL, OCCUPATION, RELATIONSHIP, SENSITIVE["race"], COUNTRY)
ENCODINGS: dict[str, tuple[Column, ...]] = {
    "binned": (*_numbers("log1p", bins=True), *CATEGORIES),
    "full": (*_numbers("linear", bins=False), *CATEGORIES),
    "compact": (
        *_numbers("log1p", bins=False), WORKCLASS, MARITAL, OCCUPATION, RELATIONSHIP,
        Categorical("native-country", ("United-States",)),
    ),
}  # fmt: skip


def load(
    *,
    seed: int = 0,
    test_fraction: float = 0.25,
    by: str = "occupation",
    sensitive: str | Sequence[str] = "sex",
    encoding: str = "binned",
    attribute_as_feature: bool = False,
) -> Federation:
    """48,842 persons at one client per occupation; sensitive: sex; label: income above 50,000 dollars.

    Rows: adult.data and adult.test together, all of them (the split is ours, not the published one).
    Features: age (17 to 90), years of education (1 to 16), hours per week (1 to 99), capital gain (0 to 99,999) and
    loss (0 to 4,356), mapped to [−1, 1]; work class, education, marital status, occupation, relationship, race and
    native country as 0/1 columns. Categories are those of the published description (adult.names), ranges those of the
    published files, as constants; missing ("?") and unseen categories are "other". Not used: fnlwgt, a sampling
    weight. Note that relationship (Husband, Wife) reveals the sex of many.
    Encoding: with `encoding` "binned" (154 features) age is in bins of five years, too, hours per week in the classes
    of the Bureau of Labor Statistics, gains and losses in round numbers of dollars; the two are ln(1 + x) besides. With
    "full" (108) there are no bins, and dollars are linear: use it with standardisation. "compact" (46) is what earlier
    versions had: no bins, ln(1 + x), neither education nor race, and United-States or other for the native country.
    Options: `by`: the clients are the occupations (15) or, with "workclass", the employers' kinds (9), "other"
    included; `sensitive`: "sex" (Female, Male), "race" (five values), or a list of both, and what is sensitive is no
    feature; `attribute_as_feature` adds sex and race, as 0/1 columns, to the features.
    """
    clients = CLIENTS[choice("by", by, CLIENTS)]
    attributes = [SENSITIVE[choice("sensitive", name, SENSITIVE)] for name in words("sensitive", sensitive)]
    columns = ENCODINGS[choice("encoding", encoding, ENCODINGS)]
    if flag("attribute_as_feature", attribute_as_feature):
        columns = (*(group for group in SENSITIVE.values() if group not in columns), *columns)
    else:
        columns = tuple(column for column in columns if column not in attributes)
    rows: list[list[str]] = []
    notes: list[str] = []
    for file in FILES:
        path, file_notes = require("adult", file)
        rows += read_table(path, columns=NAMES, comment="|").rows
        notes += file_notes
    for row in rows:
        row[-1] = row[-1].removesuffix(".")  # adult.test writes ">50K."
    whole = Table(tuple(NAMES), rows)
    table = whole.where(_usable(whole))
    if len(table) < len(whole):
        notes.append(f"{len(whole) - len(table)} of {len(whole)} rows dropped: no income, sex or race.")
    return assemble_table(
        "adult",
        table,
        columns=columns,
        label="income above 50K",
        labels=[income == ">50K" for income in table.column("income")],
        sensitive=[(SensitiveAttribute(a.name, a.values), a.codes(table.column(a.name))) for a in attributes],
        client_of=[clients.all_values[code] for code in clients.codes(table.column(clients.name))],
        order=(*clients.values, OTHER),
        seed=seed,
        test_fraction=test_fraction,
        notes=notes,
    )


def _usable(table: Table) -> list[bool]:
    """For each row whether its label and its groups are known."""
    known = zip(table.column("income"), *(table.column(name) for name in SENSITIVE), strict=True)
    declared = [set(attribute.values) for attribute in SENSITIVE.values()]
    return [
        income in ("<=50K", ">50K") and all(value in values for value, values in zip(groups, declared, strict=True))
        for income, *groups in known
    ]


DATASET = Dataset(
    name="adult",
    description="income of 48,842 persons in the 1994 US census; clients by occupation, fairness by sex",
    source="https://archive.ics.uci.edu/dataset/2/adult",
    licence="CC BY 4.0 (UCI)",
    load=load,
    files=FILES,
)
