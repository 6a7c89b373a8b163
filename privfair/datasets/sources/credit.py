"""Credit: default of credit card holders in Taiwan (Yeh & Lien 2009, UCI)."""

from __future__ import annotations

from privfair.datasets.assembly import assemble_table
from privfair.datasets.columns import OTHER, Categorical, Column, Numeric
from privfair.datasets.downloads import Dataset, SourceFile, require
from privfair.datasets.records import Federation, SensitiveAttribute
from privfair.datasets.table import Table, choice, flag, read_table

FILE = SourceFile(
    "UCI_Credit_Card.csv",
    "e3d893c1b4a9dc73220d01e18975ea04adb79fd8e0cebed1aea739e77797224e",
    2867207,
    (
        "https://raw.githubusercontent.com/nbgraham/SL-Loan-Default/594b9af682b5fd052f65a87dc08315ecb347b513/"
        "UCI_Credit_Card.csv",
    ),
)
LABEL = "default.payment.next.month"
SEX = Categorical("SEX", ("1", "2"), other=False)
SEX_VALUES = ("male", "female")
CLIENTS = {
    "education": ("EDUCATION", {"1": "graduate school", "2": "university", "3": "high school"}),
    "marriage": ("MARRIAGE", {"1": "married", "2": "single"}),
}
STATUS = tuple(f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6))
PERSON: tuple[Column, ...] = (
    Numeric("LIMIT_BAL", 10_000, 1_000_000, "log"),
    Numeric("AGE", 21, 79),
    Categorical("EDUCATION", ("1", "2", "3")),
    Categorical("MARRIAGE", ("1", "2")),
)
AMOUNTS: tuple[Column, ...] = (
    *(Numeric(f"BILL_AMT{month}", -1_000_000, 2_000_000, "symlog") for month in range(1, 7)),
    *(Numeric(f"PAY_AMT{month}", 0, 2_000_000, "log1p") for month in range(1, 7)),
)
ENCODINGS: dict[str, tuple[Column, ...]] = {
    "full": (*PERSON, *(Categorical(name, tuple(map(str, range(-2, 10)))) for name in STATUS), *AMOUNTS),
    "compact": (*PERSON, *(Numeric(name, -2, 9) for name in STATUS), *AMOUNTS),
}


def load(
    *,
    seed: int = 0,
    test_fraction: float = 0.25,
    by: str = "education",
    encoding: str = "full",
    attribute_as_feature: bool = False,
) -> Federation:
    """30,000 card holders at four clients, by education; sensitive: sex; label: default in the next month.

    Features: credit limit (ln, 10,000 to 1,000,000), age (21 to 79), six bills (sign(x)·ln(1 + |x|), −1 to 2 million)
    and six payments (ln(1 + x), up to 2 million), all from these public ranges to [−1, 1]; education, marriage and the
    status of the last six repayments (−2 to 9) as 0/1 columns, undocumented codes being "other".
    Encoding: with `encoding` "full" there are 99 features. "compact" (27) is what earlier versions had: the status of
    a repayment is a number from −2 to 9, mapped to [−1, 1].
    Options: `by`: clients are levels of education or, with "marriage", married, single, other; `attribute_as_feature`
    adds sex as 0/1 columns.
    """
    column, names = CLIENTS[choice("by", by, CLIENTS)]
    columns = ENCODINGS[choice("encoding", encoding, ENCODINGS)]
    columns = (SEX, *columns) if flag("attribute_as_feature", attribute_as_feature) else columns
    path, file_notes = require("credit", FILE)
    whole = read_table(path)
    table = whole.where(_usable(whole))
    dropped = [f"{len(whole) - len(table)} of {len(whole)} rows dropped: no label or sex."]
    return assemble_table(
        "credit",
        table,
        columns=columns,
        label=LABEL,
        labels=[label == "1" for label in table.column(LABEL)],
        sensitive=[(SensitiveAttribute("sex", SEX_VALUES), SEX.codes(table.column("SEX")))],
        client_of=[names.get(value, OTHER) for value in table.column(column)],
        order=(*names.values(), OTHER),
        seed=seed,
        test_fraction=test_fraction,
        notes=(*file_notes, *(dropped if len(table) < len(whole) else ())),
    )


def _usable(table: Table) -> list[bool]:
    """For each row whether its label and its group are known."""
    known = zip(table.column(LABEL), table.column("SEX"), strict=True)
    return [label in ("0", "1") and sex in SEX.values for label, sex in known]


DATASET = Dataset(
    name="credit",
    description="default of 30,000 card holders in Taiwan; clients by education, fairness by sex",
    source="https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients",
    licence="CC BY 4.0 (UCI)",
    load=load,
    files=(FILE,),
)
