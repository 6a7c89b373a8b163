"""Drug consumption: personality and drug use of 1,885 persons (Fehrman et al. 2017, UCI)."""

from __future__ import annotations

from privfair.datasets.assembly import assemble_table
from privfair.datasets.columns import OTHER, Categorical, Numeric
from privfair.datasets.downloads import Dataset, SourceFile, require
from privfair.datasets.records import Federation, SensitiveAttribute
from privfair.datasets.table import choice, flag, read_table

FILE = SourceFile(
    "drug_consumption.data",
    "90b8cf500b07ad455baf9fe1dc519998c75a1df6d87f6bd7069176f0826ea8c1",
    346695,
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/00373/drug_consumption.data",),
)
DRUGS = [
    "alcohol",
    "amphetamines",
    "amyl_nitrite",
    "benzodiazepines",
    "caffeine",
    "cannabis",
    "chocolate",
    "cocaine",
    "crack",
    "ecstasy",
    "heroin",
    "ketamine",
    "legal_highs",
    "lsd",
    "meth",
    "mushrooms",
    "nicotine",
    "semeron",
    "vsa",
]
FEATURES = (
    Numeric("age", -0.95197, 2.59171),
    Numeric("gender", -0.48246, 0.48246),
    Numeric("education", -2.43591, 1.98437),
    Numeric("neuroticism", -3.46436, 3.27393),
    Numeric("extraversion", -3.27393, 3.27393),
    Numeric("openness", -3.27393, 2.90161),
    Numeric("agreeableness", -3.46436, 3.46436),
    Numeric("conscientiousness", -3.46436, 3.46436),
    Numeric("impulsiveness", -2.55524, 2.90161),
    Numeric("sensation_seeking", -2.07848, 1.92173),
)
NAMES = ["id", "age", "gender", "education", "country", "ethnicity", *(column.name for column in FEATURES[3:]), *DRUGS]
COUNTRIES = {
    "0.96082": "UK",
    "-0.57009": "USA",
    "0.24923": "Canada",
    "-0.09765": "Australia",
    "0.21128": "Republic of Ireland",
    "-0.46841": "New Zealand",
    "-0.28519": OTHER,
}
WHITE = "-0.31685"
ETHNICITY = Categorical("ethnicity", ("-1.10702", "-0.50212", "1.90725", "0.12600", "-0.22166", "0.11440", WHITE))


def load(
    *, seed: int = 0, test_fraction: float = 0.25, drug: str = "heroin", attribute_as_feature: bool = False
) -> Federation:
    """1,885 persons at seven clients, by country; sensitive: ethnicity; label: never used heroin.

    Label (as in the authors' code of Rychener, Kuhn & Hu, AISTATS 2025): 1 iff the class of use is CL0, "never used".
    Sensitive (likewise): 0 not white, 1 white. Clients: UK, USA, Canada, Australia, Ireland, New Zealand, other.
    Features: age, gender, education, five personality scores, impulsiveness and sensation seeking, as published
    (quantified), from their published ranges to [−1, 1]. The authors' code also has country and ethnicity as numbers;
    here country is the client, and `attribute_as_feature` adds ethnicity as 0/1 columns. Options: `drug`: the label is
    about that drug.
    """
    drug = choice("drug", drug, DRUGS)
    columns = (ETHNICITY, *FEATURES) if flag("attribute_as_feature", attribute_as_feature) else FEATURES
    path, notes = require("drug", FILE)
    table = read_table(path, columns=NAMES)
    return assemble_table(
        "drug",
        table,
        columns=columns,
        label=f"never used {drug}",
        labels=[use == "CL0" for use in table.column(drug)],
        sensitive=[
            (
                SensitiveAttribute("ethnicity", ("not white", "white")),
                [ethnicity == WHITE for ethnicity in table.column("ethnicity")],
            )
        ],
        client_of=[COUNTRIES.get(country, OTHER) for country in table.column("country")],
        order=tuple(COUNTRIES.values()),
        seed=seed,
        test_fraction=test_fraction,
        notes=notes,
    )


DATASET = Dataset(
    name="drug",
    description="drug use of 1,885 persons; clients by country, fairness by ethnicity",
    source="https://archive.ics.uci.edu/dataset/373/drug+consumption+quantified",
    licence="CC BY 4.0 (UCI)",
    load=load,
    files=(FILE,),
)
