"""`privfair calibrate`: the noise and the ε of a planned run, before anything is released."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accountant.errors import InputError, require_positive
from privfair.cli.console import Console, escape, plain_table
from privfair.cli.ledger import JsonOption, json_number
from privfair.cli.plan import CountsOfOption, GroupsOption, RecordsOption, answered, plans_of, with_counts
from privfair.cli.plan import epsilon_text as _epsilon

if TYPE_CHECKING:
    from accountant.bounds import Method
    from privfair.config import Config
    from privfair.fairness.notions import Notion
    from privfair.runs.planned import PlannedRun, PublicFacts

FACTORS = (0.5, 1.0, 2.0)
LEAST_STEP = 1.0005  # noise grows by this factor if rounding to a grid took ε above the target


Noise = Literal["gaussian", "laplace", "none", "unused"]
Tracker = Literal["samples", "embedding"]
Counts = Literal["laplace", "gaussian", "public"]
Updates = Literal["dp_sgd", "client_level", "none", "unused"]
Evaluation = Literal["none", "laplace", "gaussian"]
# Options that go with a configuration; all others are its keys, and are set there.
BESIDE_CONFIG = {"config", "overrides", "clients", "records", "groups", "counts_of", "as_json"}


def calibrate(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(help="The TOML file of a run. Without it the options below describe one.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="With a file: section.key=value, for example privacy.epsilon=2")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Target ε of the worst client.")] = 3.0,
    delta: Annotated[float, typer.Option(help="Target δ.")] = 1e-5,
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 100,
    local_steps: Annotated[int, typer.Option(min=1, help="DP-SGD steps of a client in a round.")] = 10,
    sampling_rate: Annotated[float, typer.Option(help="Probability of a record to be in a DP-SGD batch.")] = 0.01,
    samples_rate: Annotated[float, typer.Option(help="Probability of a record's score to be shared in a round.")] = 0.1,
    predictions: Annotated[
        Noise, typer.Option(help="Noise on the shared scores; unused: none are shared.")
    ] = "gaussian",
    tracker: Annotated[
        Tracker, typer.Option(help="Scores of some records, or sums of features of all (fairness.tracker).")
    ] = "samples",
    updates: Annotated[
        Updates, typer.Option(help="Protection of the model updates; unused: none are sent.")
    ] = "dp_sgd",
    counts: Annotated[
        Counts, typer.Option(help="Noise on the counts; public counts are accounted under replace-one.")
    ] = "laplace",
    evaluation: Annotated[
        Evaluation, typer.Option(help="Noise on the final figures of the test records; none: they are not released.")
    ] = "none",
    retries: Annotated[
        int, typer.Option(min=0, help="Releases a client may repeat after a crash: part of the plan.")
    ] = 1,
    score_range: Annotated[float, typer.Option(help="Width of the range scores are clipped to.")] = 1.0,
    notion: Annotated[
        str, typer.Option(help="Fairness notion of the run: of some, all records are counted beside the groups.")
    ] = "statistical_parity",
    attributes: Annotated[int, typer.Option(min=1, help="Sensitive attributes.")] = 1,
    conditioning_sets: Annotated[
        int | None, typer.Option(min=1, help="How many a record can be in, times sensitive attributes.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Data holders.")] = 10,
    features: Annotated[int, typer.Option(min=1, help="Features of a logistic model (for client_level).")] = 10,
    records: RecordsOption = None,
    groups: GroupsOption = None,
    counts_of: CountsOfOption = None,
    updates_noise: Annotated[float, typer.Option(help="Noise multiplier, relative to the other channels.")] = 1.0,
    predictions_noise: Annotated[float, typer.Option(help="Noise scale, relative to the other channels.")] = 1.0,
    counts_noise: Annotated[float, typer.Option(help="Noise scale, relative to the other channels.")] = 10.0,
    evaluation_noise: Annotated[float, typer.Option(help="Noise scale, relative to the other channels.")] = 10.0,
    fixed: Annotated[
        list[str] | None,
        typer.Option(help="A channel whose noise stays: updates, predictions or embeddings, counts, evaluation."),
    ] = None,
    method: Annotated[Literal["pld", "rdp"], typer.Option(help="How the target is met.")] = "pld",
    as_json: JsonOption = False,
) -> None:
    """Show the noise of every channel and the ε of a run before it releases anything: the plan that train makes.

    With the file of a run: its own plan, as privfair plan prints it, and what other choices would cost. A table with a
    declared schema is not opened. Where rates follow from released counts (no privacy.sampling_rate), they are those of
    data.records, --records or --counts-of an earlier run; a size that nobody declared is assumed, and said.

    Without a file: the relative noises give the proportions between the channels; all are multiplied by one factor
    until the target is met from below. The lines of [privacy] that make train do the same are printed below.

    The ε is that of everything the plan allows, also of --retries repetitions after a crash. A run that needs none
    releases less, and its statement (privacy.json) has what it released. A lifetime budget (privfair budget) counts by
    a Rényi filter, which needs a little more noise.

    Example: privfair calibrate run.toml --set privacy.epsilon=2
    Example: privfair calibrate --epsilon 3 --rounds 100 --predictions laplace
    """
    given = {name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}
    console = Console(stderr=True, quiet=as_json)
    notes: list[str] = []
    if config is not None:
        others = sorted(given - BESIDE_CONFIG)
        if others:
            option = f"--{others[0].replace('_', '-')}"
            rule, remedy = "must be left out beside a configuration", "Set its key there: --set section.key=value."
            raise InputError(option, rule, context.params[others[0]], remedy)
        with console.status("Planning the run"):
            found = plans_of(config, overrides, clients if "clients" in given else None, records, groups, counts_of)
        run, fixed, target = found.runs[0], [], found.runs[0].config.privacy.epsilon
        notes += found.notes
    else:
        if overrides:
            raise InputError("--set", "goes with the file of a run", overrides[0])
        options = _Options(context.params)
        settings, facts = options.configuration(), options.facts()
        facts = with_counts(settings, facts, records, groups or [], counts_of)
        with console.status("Searching for the noise"):
            run = _searched(settings, facts, options)
        fixed, target = options.fixed, epsilon
        if counts == "public" and facts.counts is None and predictions != "unused":
            notes.append("Groups are taken to be large. With --records the shared numbers are rounded as in a run.")
    with console.status("Pricing other choices"):
        answer = answered(run, target, fixed, without_updates=updates == "unused")
        answer |= {"other_choices": _other_choices(run, fixed), "notes": notes}
    if as_json:
        print(json.dumps(answer, ensure_ascii=False, allow_nan=False))
    else:
        _print(answer, from_file=config is not None)


class _Options:
    """The options of a run without a file, as a configuration, facts about its data, and noise to scale."""

    def __init__(self, given: dict[str, Any]) -> None:
        """Raise on what no run can have."""
        self.given = given
        for option in ("sampling_rate", "samples_rate"):
            if not 0 < given[option] <= 1:
                remedy = "It is a probability, not a batch size."
                raise InputError(f"--{option.replace('_', '-')}", "must be in (0, 1]", given[option], remedy)
        for option in (
            "epsilon", "score_range", "updates_noise", "predictions_noise", "counts_noise", "evaluation_noise",
        ):  # fmt: skip
            require_positive(f"--{option.replace('_', '-')}", given[option])
        self.fairness = "embeddings" if given["tracker"] == "embedding" else "predictions"
        if given["updates"] == "client_level":
            self._require_whole_clients()
        for channel, kind in (("updates", given["updates"]), (self.fairness, given["predictions"])):
            if kind == "none":
                remedy = 'A channel without noise makes ε infinite. If the run does not have it, write "unused".'
                raise InputError(channel, "must have noise to meet a target", "none", remedy)
        if self.fairness == "embeddings" and given["predictions"] == "laplace":
            raise InputError("--predictions", "must be gaussian for the embedding tracker", "laplace")
        present = {
            "updates": given["updates"] != "unused",
            self.fairness: given["predictions"] != "unused",
            "counts": given["counts"] != "public",
            "evaluation": given["evaluation"] != "none",
        }
        self.channels = [name for name, there in present.items() if there]
        if not self.channels:
            remedy = "Nothing is sent, so nothing is spent."
            raise InputError("the plan", "must have at least one channel", "none", remedy)
        self.fixed = list(given["fixed"] or [])
        for name in self.fixed:
            if name not in self.channels:
                raise InputError("fixed", f"must be one of {', '.join(self.channels)}", name)

    def _require_whole_clients(self) -> None:
        """Raise if a message's price for a whole client is unknown without its records."""
        counts, predictions = self.given["counts"], self.given["predictions"]
        if counts != "public":
            rule = "must be public for client-level updates: noise on counts hides one record, not all of a client"
            raise InputError("--counts", rule, counts)
        known = self.given["records"] is not None or self.given["counts_of"] is not None
        if predictions != "unused" and not known:
            rule = (
                "must be unused for client-level updates without --records: scores of more records cost a client more"
            )
            raise InputError("--predictions", rule, predictions, "Give --records and --clients.")

    def noise(self, factor: float = 1.0) -> dict[str, float]:
        """The noise keys of [privacy]: as given, times the factor where it is not fixed."""
        from privfair.federated.release_plan import NOISE_KEYS

        given = self.given
        relative = {
            "updates": given["updates_noise"],
            "predictions": given["predictions_noise"] * given["score_range"],
            "embeddings": given["predictions_noise"],
            "counts": given["counts_noise"],
            "evaluation": given["evaluation_noise"],
        }
        return {NOISE_KEYS[c]: relative[c] * (1.0 if c in self.fixed else factor) for c in self.channels}

    def configuration(self, factor: float = 1.0) -> Config:
        """The run as a configuration."""
        from privfair.config import Config

        given, sampled = self.given, self.given["updates"] != "client_level"
        privacy: dict[str, Any] = {
            "delta": given["delta"],
            "target_method": given["method"],
            "counts": given["counts"],
            "updates": "none" if given["updates"] == "unused" else given["updates"],
            "evaluation": given["evaluation"],
            "retries": given["retries"],
            **self.noise(factor),
        }
        if sampled:
            privacy |= {"sampling_rate": given["sampling_rate"], "local_steps": given["local_steps"]}
        if self.fairness in self.channels:
            privacy |= {"predictions": given["predictions"], "score_range": [0.0, given["score_range"]]}
            if self.fairness == "predictions":
                privacy["prediction_rate"] = given["samples_rate"]
        method = "mmd_fedavg" if self.fairness in self.channels else "fedavg"
        return Config.build(
            {
                "fairness": {"tracker": given["tracker"] if method == "mmd_fedavg" else "samples"},
                "federation": {"rounds": given["rounds"], "method": method},
                "privacy": privacy,
                "aggregation": {"masks": False},  # the price of noise that every client adds by itself
            }
        )

    def facts(self) -> PublicFacts:
        """Data of so many clients, features and attributes, with two groups of each attribute."""
        from privfair.datasets.records import Schema, SensitiveAttribute
        from privfair.runs.planned import PublicFacts

        given = self.given
        attributes = tuple(SensitiveAttribute(f"attribute {n}", ("0", "1")) for n in range(given["attributes"]))
        names = tuple(f"feature {n}" for n in range(given["features"]))
        schema = Schema(names, "binary", "label", (0.0, 1.0), attributes)
        return PublicFacts(schema, given["clients"], notion=self._notion())

    def _notion(self) -> Notion:
        """A notion with as many overlapping sets, of scores with the given range.

        Several sets of an attribute are assumed not to cover all records, which is the safe side: sets that a record
        can be in together hardly ever do.
        """
        from privfair.config import NOTION_ALIASES
        from privfair.fairness.notions import EVERYONE, NAMES, Notion, known_notion

        name, attributes = self.given["notion"], self.given["attributes"]
        name = NOTION_ALIASES.get(name, name)
        if name not in NAMES:
            raise InputError("--notion", "must be a known notion", name, f"Known: {', '.join(NAMES)}.")
        total = self.given["conditioning_sets"] or attributes
        if total % attributes:
            rule = f"must be a multiple of --attributes, {attributes}: each attribute is compared on every set"
            raise InputError("--conditioning-sets", rule, total)
        known, sets = known_notion(name), total // attributes
        partition = known is not None and known.partition and sets == 1
        # The score is a loss, which has no range of its own: the range is the given one.
        return Notion(f"planned {name}", "loss", (EVERYONE,) * sets, partition=partition)


def _searched(config: Config, facts: PublicFacts, options: _Options) -> PlannedRun:
    """The plan with the least common factor on its noise that meets the target; unchanged if all noise is fixed."""
    from dataclasses import replace

    from accountant.calibration import calibrate as search
    from privfair.runs.planned import planned_by_rates, planned_run

    def planned(factor: float) -> PlannedRun:
        settings = options.configuration(factor)
        public = settings.privacy.counts == "public" and facts.counts is None
        return planned_by_rates(settings, facts) if public else planned_run(settings, facts)

    run, given = planned(1.0), options.given
    free = [replace(channel, fixed=channel.name in options.fixed) for channel in run.channels]
    if all(channel.fixed for channel in free):
        return run
    how: Method = given["method"]
    factor = search(free, given["epsilon"], given["delta"], how).factor
    run = planned(factor)
    while run.planner.price(run.channels)[how == "pld"] > given["epsilon"]:
        factor *= LEAST_STEP
        run = planned(factor)
    return run


def _other_choices(run: PlannedRun, fixed: list[str]) -> list[dict[str, Any]]:
    """What other noise and other numbers of rounds would cost."""
    rounds, by_pld = run.config.federation.rounds, run.config.privacy.target_method == "pld"
    return [
        {
            "noise": noise,
            "rounds": max(1, round(rounds * times)),
            "epsilon": json_number(run.other_choice(noise, times, fixed)[by_pld]),
        }
        for noise in FACTORS
        for times in FACTORS
        if math.isfinite(run.planner.price(run.channels)[1]) and rounds * times >= 1
    ]


def _print(answer: dict[str, Any], *, from_file: bool) -> None:
    console = Console()
    both, target = answer["epsilon_by"], answer["target"]
    whom = answer["adjacency"] + ("" if answer["unit"] == "record" else f", unit {answer['unit']}")
    goal = "" if target is None else f"; target {target:g} by {answer['method'].upper()}"
    console.print(
        f"[bold]ε = {_epsilon(both['pld'])} by PLD[/], {_epsilon(both['rdp'])} by RDP at δ = {answer['delta']:g} "
        f"({whom}){goal}"
    )
    for channel in answer["without_noise"]:
        console.print(f"{channel}: exact values leave the clients, so there is no ε.", style="yellow")
    table = plain_table()
    for column in ("channel", "noise", "scale", "sensitivity", "rate", "releases", "ε alone"):
        table.add_column(column, justify="left" if column in ("channel", "noise") else "right", no_wrap=True)
    for name, facts in answer["channels"].items():
        scale = facts["noise_scale"]
        table.add_row(
            escape(name) + (" [dim](fixed)[/]" if facts["fixed"] else ""),
            escape(facts["mechanism"]),
            "–" if scale is None else f"[bold]{_scale(scale)}[/]",
            "–" if facts["sensitivity"] is None else f"{facts['sensitivity']:.4g}",
            f"{facts['rate']:.4g}",
            f"{facts['releases']:,}",
            _epsilon(facts["epsilon_alone"]),
        )
    console.print(table)
    for line in [*_explained(answer), *answer["notes"]]:
        console.print(line, style="dim", markup=False)
    if answer["configuration"] and not from_file:
        _print_configuration(console, answer["configuration"])
    _print_choices(console, answer)


def _explained(answer: dict[str, Any]) -> list[str]:
    """What the ε covers, in words."""
    lost = answer["retries"]
    room = f"with {lost} repeated release{'s' if lost != 1 else ''} of each client and channel after a crash (retries)"
    found = [f"This is what privfair train plans and prints: everything of all rounds, {room}."]
    if answer["configuration"] is None:
        found = [f"Of these channels alone, {room}. Training sends updates too, and costs more."]
    if answer["plan"] == "two phases":
        found.append(
            "The plan has two phases: ε is the target whatever counts are released. Noise, rates and the other choices "
            "below are for the given counts."
        )
    return found


def _print_configuration(console: Console, tables: dict[str, dict[str, Any]]) -> None:
    import tomli_w

    console.print("\nThe same plan for privfair train, as a configuration:", style="bold")
    console.print(tomli_w.dumps(tables).strip(), markup=False, soft_wrap=True)


def _print_choices(console: Console, answer: dict[str, Any]) -> None:
    others = answer["other_choices"]
    if not others:
        return
    numbers = sorted({choice["rounds"] for choice in others})
    title = f"\nε for other choices (by {answer['method'].upper()})"
    table = plain_table(title)
    table.add_column("noise")
    for number in numbers:
        table.add_column(f"{number:,} rounds" if number > 1 else "1 round", justify="right")
    for noise in FACTORS:
        cells = {choice["rounds"]: _epsilon(choice["epsilon"]) for choice in others if choice["noise"] == noise}
        style = "bold" if noise == 1.0 else ""
        table.add_row(f"× {noise:g}", *(cells.get(number, "–") for number in numbers), style=style)
    console.print(table)


def _scale(value: float) -> str:
    """A noise scale rounded up: with less noise than printed, ε would not hold."""
    digits = max(0, 4 - math.ceil(math.log10(value)))
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"
