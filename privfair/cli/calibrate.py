"""`privfair calibrate`: the noise a planned run needs, before any data is touched."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from accountant.errors import InputError, require_positive
from privfair.cli.books import JsonOption, json_number, shown
from privfair.cli.console import Console, escape

if TYPE_CHECKING:
    from accountant.calibration import Calibration, Channel
    from accountant.events import Event

FACTORS = (0.5, 1.0, 2.0)


class Noise(StrEnum):
    """Noise on scores or counts."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    NONE = "none"
    UNUSED = "unused"


class Tracker(StrEnum):
    """What is shared for fairness."""

    SAMPLES = "samples"
    EMBEDDING = "embedding"


class Counts(StrEnum):
    """How the numbers of records become known."""

    LAPLACE = "laplace"
    GAUSSIAN = "gaussian"
    PUBLIC = "public"


class Updates(StrEnum):
    """How model updates are protected."""

    DP_SGD = "dp_sgd"
    CLIENT_LEVEL = "client_level"
    NONE = "none"
    UNUSED = "unused"


class MethodName(StrEnum):
    """How ε is computed."""

    PLD = "pld"
    RDP = "rdp"


def calibrate(
    epsilon: Annotated[float, typer.Option(help="Target ε of the worst client.")] = 3.0,
    delta: Annotated[float, typer.Option(help="Target δ.")] = 1e-5,
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 100,
    local_steps: Annotated[int, typer.Option(min=1, help="DP-SGD steps of a client in a round.")] = 10,
    sampling_rate: Annotated[float, typer.Option(help="Probability of a record to be in a DP-SGD batch.")] = 0.01,
    samples_rate: Annotated[float, typer.Option(help="Probability of a record's score to be shared in a round.")] = 0.1,
    predictions: Annotated[
        Noise, typer.Option(help="Noise on the shared scores; unused: none are shared.")
    ] = Noise.GAUSSIAN,
    tracker: Annotated[
        Tracker, typer.Option(help="Scores of some records, or sums of features of all (fairness.tracker).")
    ] = Tracker.SAMPLES,
    updates: Annotated[
        Updates, typer.Option(help="Protection of the model updates; unused: none are sent.")
    ] = Updates.DP_SGD,
    counts: Annotated[
        Counts, typer.Option(help="Noise on the counts; public counts are accounted under replace-one.")
    ] = Counts.LAPLACE,
    score_range: Annotated[float, typer.Option(help="Width of the range scores are clipped to.")] = 1.0,
    notion: Annotated[
        str, typer.Option(help="Fairness notion of the run: of some, all records are counted beside the groups.")
    ] = "statistical_parity",
    conditioning_sets: Annotated[
        int, typer.Option(min=1, help="How many a record can be in, times sensitive attributes.")
    ] = 1,
    updates_noise: Annotated[float, typer.Option(help="Noise multiplier, relative to the other channels.")] = 1.0,
    predictions_noise: Annotated[float, typer.Option(help="Noise scale, relative to the other channels.")] = 1.0,
    counts_noise: Annotated[float, typer.Option(help="Noise scale, relative to the other channels.")] = 10.0,
    fixed: Annotated[
        list[str] | None,
        typer.Option(help="A channel whose noise stays: updates, predictions or embeddings, counts."),
    ] = None,
    method: Annotated[MethodName, typer.Option(help="How ε is computed.")] = MethodName.PLD,
    as_json: JsonOption = False,
) -> None:
    """Find the noise of every channel that meets (ε, δ) for a planned run, and show ε for other choices.

    The relative noises give the proportions between the channels; all are multiplied by one factor until the
    target is met from below. PLD is for plans fixed beforehand; a lifetime budget (privfair budget) counts by a
    Rényi filter, which needs a little more noise.

    Example: privfair calibrate --epsilon 3 --rounds 100 --predictions laplace
    """
    from accountant.calibration import calibrate as search
    from accountant.neighbouring import Adjacency

    for option, rate in (("--sampling-rate", sampling_rate), ("--samples-rate", samples_rate)):
        if not 0 < rate <= 1:
            raise InputError(option, "must be in (0, 1]", rate, "It is a probability, not a batch size.")
    for option, size in (
        ("--score-range", score_range),
        ("--updates-noise", updates_noise),
        ("--predictions-noise", predictions_noise),
        ("--counts-noise", counts_noise),
    ):
        require_positive(option, size)
    adjacency = Adjacency.REPLACE_ONE if counts is Counts.PUBLIC else Adjacency.ADD_OR_REMOVE
    unit = "client" if updates is Updates.CLIENT_LEVEL else "record"
    if unit == "client":
        _require_alone(predictions, counts)
    releases = rounds * conditioning_sets  # a record is in a message of each of its sets
    if tracker is Tracker.EMBEDDING:
        fairness = _embeddings(predictions, releases, predictions_noise, adjacency)
    else:
        fairness = _predictions(predictions, releases, samples_rate, score_range, predictions_noise, adjacency)
    plan = [
        _updates(updates, rounds, local_steps, sampling_rate, updates_noise, adjacency),
        fairness,
        _counts(counts, conditioning_sets + _total_is_told(notion, conditioning_sets), counts_noise),
    ]
    channels = _fix([channel for channel in plan if channel is not None], fixed or [])
    if not channels:
        raise InputError("the plan", "must have at least one channel", "none", "Nothing is sent, so nothing is spent.")
    with Console(stderr=True, quiet=as_json).status("Searching for the noise"):
        found = search(channels, epsilon, delta, method.value)
        alone = found.by_channel()
        others = _other_choices(found, rounds)
    if as_json:
        about = {"adjacency": adjacency.value, "unit": unit}
        print(json.dumps(_as_json(found, alone, others, about), ensure_ascii=False, allow_nan=False))
    else:
        _print(found, alone, others, str(adjacency) if unit == "record" else f"{adjacency}, unit {unit}")


def _require_alone(predictions: Noise, counts: Counts) -> None:
    """Nothing, if whole updates are all that whole clients send: the rest depends on how many records they have."""
    if counts is not Counts.PUBLIC:
        rule = "must be public for client-level updates: noise on counts hides one record, not all of a client"
        raise InputError("--counts", rule, counts.value)
    if predictions is not Noise.UNUSED:
        rule = "must be unused for client-level updates: what scores cost a client depends on its records"
        raise InputError(
            "--predictions", rule, predictions.value, "privfair train prints the plan of a run before it trains."
        )


def _updates(kind: Updates, rounds: int, local_steps: int, rate: float, noise: float, adjacency: Any) -> Channel | None:
    """DP-SGD over all local steps; per-example gradients are clipped to norm 1, the unit of the noise.

    At client level one update a round, clipped to a length that is the unit of the noise.
    """
    from accountant.calibration import Channel
    from accountant.events import Gaussian, PoissonSampled
    from accountant.neighbouring import Adjacency, Unit

    if kind is Updates.NONE:
        raise _without_noise("updates")
    if kind is Updates.UNUSED:
        return None
    if kind is Updates.CLIENT_LEVEL:
        # One clipped update goes, another comes: the sum moves by up to 2, once a round, whatever the local steps.
        return Channel("updates", Gaussian(noise, 2.0, adjacency, Unit.CLIENT), rounds)
    if adjacency is Adjacency.REPLACE_ONE:
        # One clipped gradient goes, another comes: the sum moves by up to 2, by 1 for each alone.
        event = PoissonSampled(rate, Gaussian(noise, 2.0, adjacency), 1.0)
    else:
        event = PoissonSampled(rate, Gaussian(noise, 1.0, adjacency))
    return Channel("updates", event, rounds * local_steps)


def _predictions(kind: Noise, releases: int, rate: float, width: float, noise: float, adjacency: Any) -> Channel | None:
    """Scores clipped to a range, each record's with probability `rate`; one record moves one score of a message."""
    from accountant.calibration import Channel
    from accountant.events import FixedSizeSampled, Gaussian, Laplace, PoissonSampled
    from accountant.neighbouring import Adjacency

    if kind is Noise.NONE:
        raise _without_noise("predictions")
    if kind is Noise.UNUSED:
        return None
    noisy = (Laplace if kind is Noise.LAPLACE else Gaussian)(noise * width, width, adjacency)
    event: Event
    if adjacency is Adjacency.REPLACE_ONE:
        # Public counts: a fixed number without replacement. Only the ratio matters; it is rounded up.
        ratio = Fraction(math.ceil(rate * 10**9), 10**9)
        event = FixedSizeSampled(ratio.numerator, ratio.denominator, noisy)
    else:
        event = PoissonSampled(rate, noisy)
    return Channel("predictions", event, releases)


def _embeddings(kind: Noise, releases: int, noise: float, adjacency: Any) -> Channel | None:
    """Sums of features of all records, one for each set that a record is in; the unit is a record's largest part."""
    from accountant.calibration import Channel
    from accountant.events import Gaussian
    from privfair.kernels.features import MOST
    from privfair.mechanisms.vector_noise import DEFAULT_STEPS, VectorNoise

    if kind is Noise.NONE:
        raise _without_noise("embeddings")
    if kind is Noise.UNUSED:
        return None
    if kind is Noise.LAPLACE:
        raise InputError("--predictions", "must be gaussian for the embedding tracker", "laplace")
    # with the rounding of the most features there can be: a run with fewer needs no more noise
    sensitivity = VectorNoise(1.0, MOST).sensitivity(adjacency) / DEFAULT_STEPS
    return Channel("embeddings", Gaussian(noise, sensitivity, adjacency), releases)


def _total_is_told(name: str, conditioning_sets: int) -> bool:
    """Whether clients tell how many records they have beside the counts of groups, which do not add up to it.

    With several sets it is supposed, the safe side: sets that a record can be in together hardly ever cover all.
    """
    from privfair.config import NOTION_ALIASES
    from privfair.fairness.notions import NAMES, known_notion

    if name not in (*NAMES, *NOTION_ALIASES):
        raise InputError("--notion", "must be a known notion", name, f"Known: {', '.join(NAMES)}.")
    notion = known_notion(name)
    return notion is None or not notion.partition or conditioning_sets > 1


def _counts(kind: Counts, sets: int, noise: float) -> Channel | None:
    """One release of the counts; a record is counted in up to `sets` of them."""
    from accountant.calibration import Channel
    from accountant.events import Gaussian, Laplace

    if kind is Counts.PUBLIC:
        return None
    if kind is Counts.LAPLACE:
        return Channel("counts", Laplace(noise, float(sets)))
    # L2: one record moves `sets` counts by one each.
    return Channel("counts", Gaussian(noise, math.nextafter(math.sqrt(sets), math.inf)))


def _without_noise(channel: str) -> InputError:
    remedy = 'A channel without noise makes ε infinite. If the run does not have it, write "unused".'
    return InputError(channel, "must have noise to meet a target", "none", remedy)


def _fix(channels: list[Channel], fixed: list[str]) -> list[Channel]:
    known = [channel.name for channel in channels]
    for name in fixed:
        if name not in known:
            raise InputError("fixed", f"must be one of {', '.join(known)}", name)
    return [replace(channel, fixed=channel.name in fixed) for channel in channels]


def _other_choices(found: Calibration, rounds: int) -> list[dict[str, Any]]:
    """ε for half and double the noise and the rounds; the counts are released once whatever the rounds."""
    from accountant.bounds import spent
    from accountant.events import Composed, Repeated

    result = []
    for noise in FACTORS:
        for times in FACTORS:
            if rounds * times < 1:
                continue
            parts = []
            for channel in found.plan[found.worst_client]:
                scaled = channel.scaled(noise)
                count = channel.count if channel.name == "counts" else max(1, round(channel.count * times))
                parts.append(Repeated(scaled.event, count))
            epsilon = spent(Composed(tuple(parts)), found.delta, found.method).epsilon
            result.append({"noise": noise, "rounds": max(1, round(rounds * times)), "epsilon": epsilon})
    return result


def _as_json(
    found: Calibration, alone: dict[str, float], others: list[dict[str, Any]], about: dict[str, str]
) -> dict[str, Any]:
    return {
        "epsilon": json_number(found.epsilon),
        "target": found.target,
        "delta": found.delta,
        "method": found.method,
        **about,
        "channels": {
            channel.name: {**_facts(channel), "epsilon_alone": json_number(alone[channel.name])}
            for channel in found.plan[found.worst_client]
        },
        "other_choices": [{**choice, "epsilon": json_number(choice["epsilon"])} for choice in others],
    }


def _facts(channel: Channel) -> dict[str, Any]:
    event = channel.event
    sampled = getattr(event, "event", None)
    mechanism = sampled if sampled is not None else event
    return {
        "mechanism": mechanism.kind,
        "releases": channel.count,
        "rate": getattr(event, "rate", 1.0),
        "noise_scale": getattr(mechanism, "noise_scale", None),
        "sensitivity": getattr(mechanism, "sensitivity", None),
        "fixed": channel.fixed,
        "event": event.to_json(),
    }


def _print(found: Calibration, alone: dict[str, float], others: list[dict[str, Any]], adjacency: str) -> None:
    console = Console(highlight=False)
    console.print(
        f"[bold]ε = {shown(found.epsilon)}[/] at δ = {found.delta:g} ({found.method.upper()}, {adjacency}); "
        f"target {found.target:g}"
    )
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("channel", "noise", "scale", "sensitivity", "rate", "releases", "ε alone"):
        table.add_column(column, justify="left" if column in ("channel", "noise") else "right", no_wrap=True)
    for channel in found.plan[found.worst_client]:
        facts = _facts(channel)
        scale = facts["noise_scale"]
        table.add_row(
            escape(channel.name) + (" [dim](fixed)[/]" if channel.fixed else ""),
            escape(facts["mechanism"]),
            "–" if scale is None else f"[bold]{_scale(scale)}[/]",
            "–" if facts["sensitivity"] is None else f"{facts['sensitivity']:g}",
            f"{facts['rate']:g}",
            f"{facts['releases']:,}",
            shown(alone[channel.name]),
        )
    console.print(table)
    numbers = sorted({choice["rounds"] for choice in others})
    table = Table(box=box.SIMPLE_HEAD, title="ε for other choices", title_justify="left", title_style="bold")
    table.add_column("noise")
    for number in numbers:
        table.add_column(f"{number:,} rounds", justify="right")
    for noise in FACTORS:
        cells = {choice["rounds"]: shown(choice["epsilon"]) for choice in others if choice["noise"] == noise}
        style = "bold" if noise == 1.0 else ""
        table.add_row(f"× {noise:g}", *(cells.get(number, "–") for number in numbers), style=style)
    console.print(table)


def _scale(value: float) -> str:
    """A noise scale rounded up: less noise than printed would break the promise."""
    digits = max(0, 4 - math.ceil(math.log10(value)))
    return f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"
