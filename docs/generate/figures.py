"""The pictures of the README and the concept pages: `python docs/generate/figures.py` draws them with privfair.

They are kept in docs/images, so that the pages show them in a repository too; a test compares them with what this
program draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the privfair beside this program, not another one

import matplotlib
import numpy as np
from example_data import FEDERATIONS, rates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import accountant
from accountant import Gaussian, PoissonSampled, Repeated
from privfair.kernels import GaussianKernel, witness
from privfair.mechanisms import LaplaceNoise

matplotlib.rcParams |= {"svg.hashsalt": "privfair", "svg.fonttype": "path", "font.size": 10.5}
# Okabe & Ito's palette: told apart by colour-blind readers too
BLACK, BLUE, RED, ORANGE, GREEN = "#000000", "#0072B2", "#D55E00", "#E69F00", "#009E73"
IMAGES = Path(__file__).parents[1] / "images"
DELTA = 1e-5


def one_round() -> Figure:
    """What passes between clients and server in one round, and where its price is written down."""
    figure = Figure(figsize=(6.4, 4.9))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, 6.4), ylim=(0, 4.9))
    axis.axis("off")
    for bottom, name in ((3.86, "north"), (2.68, "south"), (1.5, "west")):
        _box(axis, (0.1, bottom, 1.45, 0.9), BLUE)
        axis.text(0.2, bottom + 0.64, f"client {name}", fontweight="bold", va="center")
        axis.text(0.2, bottom + 0.26, "records stay", va="center", color="0.3")
    _box(axis, (4.95, 1.5, 1.35, 3.26), ORANGE)
    axis.text(5.62, 4.5, "server", fontweight="bold", ha="center", va="center")
    seen = "pools noisy\nscores; adds\nup updates\nthat it\ncannot read\n\nno records,\nno key,\nno model"
    axis.text(5.62, 3.02, seen, ha="center", va="center", linespacing=1.25)
    steps = (
        (4.31, "1  a few predictions per group,", "with noise", True),
        (3.55, "2  all of them pooled:", "one witness for everyone", False),
        (2.79, "3  each client trains: loss + λ · witness;", "clips; adds noise", None),
        (2.03, "4  encrypted updates;", "clients open only the sum", True),
    )
    for height, first, second, to_server in steps:
        axis.text(3.25, height + 0.25, f"{first}\n{second}", ha="center", va="center", linespacing=1.25)
        if to_server is not None:
            ends = ((1.7, height - 0.08), (4.8, height - 0.08))
            start, end = ends if to_server else ends[::-1]
            axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": BLACK, "linewidth": 1.2})
    _box(axis, (0.1, 0.12, 6.2, 1.16), GREEN)
    axis.text(0.2, 1.04, "ledger", fontweight="bold", va="center")
    priced = (
        "Every number that leaves a client has a price here before it is made.\n"
        "The run ends with its ε and what that covers."
    )
    axis.text(0.2, 0.54, priced, va="center", linespacing=1.35)
    return figure


def _box(axis: Axes, place: tuple[float, float, float, float], colour: str) -> None:
    """A rounded box with a pale filling at (left, bottom, width, height)."""
    left, bottom, width, height = place
    style = {"boxstyle": "round,pad=0,rounding_size=0.08", "edgecolor": colour, "linewidth": 1.4}
    axis.add_patch(FancyBboxPatch((left, bottom), width, height, facecolor=f"{colour}18", **style))


def simpson() -> Figure:
    """Two federations: fair at every holder and unfair over all, and the other way round."""
    figure = Figure(figsize=(9.2, 6.2), layout="constrained")
    rows = figure.subfigures(2, 1, hspace=0.06)
    for row, (title, federation) in zip(rows, FEDERATIONS.items(), strict=True):
        row.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
        axes = row.subplots(1, 3, sharey=True, width_ratios=(1, 1, 1))
        for axis, (holder, (selected, sizes, gap)) in zip(axes, rates(federation).items(), strict=True):
            whole = holder == "all records"
            bars = axis.bar((0, 1), selected, color=(BLUE, ORANGE), width=0.62, hatch=("", "//"), edgecolor="white")
            for bar, share, size in zip(bars, selected, sizes, strict=True):
                axis.annotate(
                    f"{share:.0%}", (bar.get_x() + 0.31, share), (0, 3), textcoords="offset points", ha="center"
                )
                label = f"{size} people"
                axis.annotate(
                    label, (bar.get_x() + 0.31, 0), (0, -28), textcoords="offset points", ha="center", fontsize=9
                )
            axis.set_xticks((0, 1), ("women", "men"))
            axis.set_ylim(0, 1)
            axis.tick_params(axis="x", length=0)
            axis.set_yticks((0, 0.5, 1), ("0", "50%", "100%"))
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_title(f"{holder}: gap {gap:.0%}", color=RED if gap > 0.01 else GREEN, fontsize=11)
            if whole:
                axis.set_facecolor("#f2f2f2")
        axes[0].set_ylabel("selected")
    return figure


def kernel_noise() -> Figure:
    """What noise on shared scores does to a kernel and to the witness, and what taking it off again does."""
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    kernel, noise = GaussianKernel(0.3), LaplaceNoise(0.2)
    d = np.linspace(-1.5, 1.5, 241)
    left.plot(d, kernel.profile(d), color=BLACK, label="kernel as asked for")
    left.plot(d, kernel.convolve(noise).profile(d), color=BLUE, linestyle="--", label="what noisy scores make of it")
    left.plot(d, kernel.deconvolve(noise).profile(d), color=RED, linestyle="-.", label="deconvolved: noise undoes it")
    left.set_title("Gaussian kernel (ℓ = 0.3), Laplace noise (b = 0.2)", fontsize=11)
    left.set_xlabel("distance between two scores")
    rng = np.random.default_rng(1)
    first, second = rng.beta(2, 4, 400), rng.beta(4, 2, 400)
    z = np.linspace(0, 1, 161)
    clean = witness(first, second, kernel)
    right.plot(z, clean(z), color=BLACK, label="exact scores")
    draws = [(_noisy(first, noise, rng), _noisy(second, noise, rng)) for _ in range(100)]
    for form, colour, line, label in (
        (kernel, BLUE, "--", "noisy scores"),
        (kernel.deconvolve(noise), RED, "-.", "noisy scores, deconvolved kernel"),
    ):
        found = np.stack([witness(a, b, form)(z) for a, b in draws])
        low, middle, high = (np.quantile(found, q, axis=0) for q in (0.05, 0.5, 0.95))
        right.fill_between(z, low, high, color=colour, alpha=0.15, linewidth=0)
        right.plot(z, middle, color=colour, linestyle=line, label=label)
    right.set_title("witness: how much group 0 is ahead at a score", fontsize=11)
    right.set_xlabel("score (bands: 90% of 100 draws of the noise)")
    for axis in (left, right):
        axis.axhline(0, color="0.85", linewidth=0.8, zorder=0)
        axis.legend(frameon=False, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    left.set_ylim(top=2.35)
    return figure


def _noisy(scores: Any, noise: LaplaceNoise, rng: np.random.Generator) -> Any:
    return scores + rng.laplace(0, noise.scale, len(scores))


def guessing() -> Figure:
    """How often a guesser can be right about one record, against ε; and ε over the rounds of a run."""
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    epsilons = np.arange(0, 6.01, 0.1)
    some = np.concatenate([[0.05], np.arange(0.5, 6.01, 0.5)])
    left.plot(epsilons, [most_right(e) for e in epsilons], color=BLACK, label="no guesser can do better")
    left.plot(
        some,
        [gaussian_right(e) for e in some],
        color=BLUE,
        linestyle="--",
        label="best guess, one Gaussian release",
    )
    for epsilon in (0.1, 1, 3):
        left.plot(epsilon, most_right(epsilon), "o", color=BLACK)
        left.annotate(
            f"ε = {epsilon:g}: {most_right(epsilon):.1%}",
            (epsilon, most_right(epsilon)),
            (8, -20 if epsilon < 1 else -12),
            textcoords="offset points",
            fontsize=9,
        )
    left.axhline(0.5, color="0.6", linewidth=0.8)
    left.text(6, 0.475, "a coin: 50%", ha="right", color="0.35", fontsize=9)
    left.set_ylim(0.45, 1.03)
    left.set_xlim(0, 6.2)
    left.set_yticks((0.5, 0.75, 1), ("50%", "75%", "100%"))
    left.set_xlabel("ε  (δ = 1e-5)")
    left.set_title("guess right: is this person's record in?", fontsize=11)
    left.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.1))
    rounds = np.array([1, 2, 5, 10, 20, 40, 60, 80, 100])
    step = PoissonSampled(0.1, Gaussian(noise_scale=1.4))
    single = accountant.epsilon(step, DELTA, "pld")
    right.plot(rounds, rounds * single, color="0.5", linestyle=":", label="adding up ε of each round")
    for method, colour, line in (("rdp", RED, "-."), ("pld", BLUE, "--")):
        spent = [accountant.epsilon(Repeated(step, int(n)), DELTA, method) for n in rounds]
        right.plot(rounds, spent, color=colour, linestyle=line, label=f"all rounds together, {method.upper()}")
    right.set_ylim(0, 8)
    right.set_xlabel("rounds")
    right.set_title("ε of a run (rate 0.1, noise 1.4, a step a round)", fontsize=11)
    right.legend(frameon=False, fontsize=9, loc="upper right")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def most_right(epsilon: float, delta: float = DELTA) -> float:
    """How often any guesser between two equally likely neighbours is right at most: (e^ε + δ) / (e^ε + 1)."""
    return float((np.exp(epsilon) + delta) / (np.exp(epsilon) + 1))


def gaussian_right(epsilon: float, delta: float = DELTA) -> float:
    """The same for one Gaussian release with the least noise of this (ε, δ): (1 + total variation) / 2."""
    release = accountant.calibrate_release(Gaussian(noise_scale=1.0), epsilon, delta)
    return (1 + accountant.delta_of(release, 0.0, "pld")) / 2


FIGURES: dict[str, Callable[[], Figure]] = {
    "one_round.svg": one_round,
    "local_and_global.svg": simpson,
    "kernel_noise.svg": kernel_noise,
    "guessing.svg": guessing,
}


def write(folder: Path) -> None:
    """Every figure as an SVG."""
    for name, draw in FIGURES.items():
        draw().savefig(folder / name, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    write(IMAGES)
