"""The limits: encryption changes no result, and with noise going to 0 the private run is the other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair
from privfair.config import Config
from privfair.runs.assembly import build
from tests.end_to_end.federations import toy
from tests.end_to_end.test_private_training import QUICK, parameters


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.sqlite"


# ---- encryption changes nothing


@pytest.mark.parametrize(
    "federation",
    [
        {}, {"method": "agnostic"}, {"method": "fairfed"}, {"method": "fedfb"}, {"optimizer": "scaffold"},
        {"optimizer": "fedadam"}, {"optimizer": "fedprox"}, {"clients_per_round": 2},
        {"clients_per_round": 2, "optimizer": "scaffold"}, {"method": "local_fairness", "local_optimizer": "adam"},
    ],
)  # fmt: skip
def test_encrypted_is_plain_bit_for_bit_without_privacy(federation: dict[str, Any]) -> None:
    """The same integers are added: BFV and the plain sum of quantised updates give the same model and history."""
    # the energy kernel has jumps, at which a change of 1e-9 is seen; sums of features are rounded, where scores are not
    smooth = {"kernel": "gaussian:0.5", "tracker": "samples"}
    shared: dict[str, Any] = {"dataset": toy(), "federation": {**QUICK, "rounds": 3, **federation}, "fairness": smooth}
    encrypted = privfair.train(**shared, aggregation={"scheme": "bfv"})
    quantised = privfair.train(**shared, aggregation={"scheme": "plain", "quantise": True})
    np.testing.assert_array_equal(parameters(encrypted), parameters(quantised))
    assert encrypted.rows == quantised.rows
    plain = privfair.train(**shared)
    assert plain.metrics["aggregation"] == {"scheme": "plain", "quantised": False}
    # FedAdam divides by √v, which quantisation moves relatively more where v is small
    tolerance = 1e-4 if federation.get("optimizer") == "fedadam" else 1e-6
    np.testing.assert_allclose(parameters(encrypted), parameters(plain), atol=tolerance)
    assert not encrypted.privacy["private"]


def test_ckks_is_close_to_plain() -> None:
    """Flooding noise of the opened sums is known: k of its standard deviations a round."""
    shared: dict[str, Any] = {"dataset": toy(), "federation": {**QUICK, "rounds": 3}, "run": {"dtype": "float64"}}
    simulation = build(Config.build({"aggregation": {"scheme": "ckks"}, "federation": shared["federation"]}), toy())
    noise = simulation.replica.aggregator.noise
    assert noise > 0
    ckks = privfair.train(**shared, aggregation={"scheme": "ckks"})
    plain = privfair.train(**shared, aggregation={"scheme": "plain", "quantise": True})
    difference = parameters(ckks) - parameters(plain)
    # 3 rounds of independent noise, twice for what a moved model makes of it later, at 6 standard deviations
    assert np.abs(difference).max() <= 2 * 6 * noise * 3**0.5 + 1e-6
    assert np.any(difference != 0)


# ---- without noise the private run is the other one


def without_noise(noise: float, url: str, **sections: Any) -> privfair.Result:
    """Every record in every step, no clipping, noise of a scale that goes to 0."""
    privacy = {
        "count_noise": 1e-6, "prediction_noise": noise, "noise_multiplier": noise, "sampling_rate": 1.0,
        "prediction_rate": 1.0, "max_grad_norm": 100.0,
    }  # fmt: skip
    return privfair.train(
        sections, dataset=toy(records=80), privacy=privacy, aggregation={"scheme": "plain"},
        run={"dtype": "float64", "ledger": url},
    )  # fmt: skip


def full_batch(**sections: Any) -> privfair.Result:
    return privfair.train(sections, dataset=toy(records=80), run={"dtype": "float64"})


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_noise_to_zero_is_plain_training(url: str, optimizer: str) -> None:
    """Noise z·C/n on each step's gradient: the models differ by a few z·C·η/n, and by 0 in the limit.

    After T = 6 steps of rate η the noise has standard deviation η√T·zC/n; steps down a convex loss do not enlarge it.
    Adam divides by the gradient's own size, so for it the difference is only shown to shrink with z.
    """
    work = {
        "method": "fedavg", "rounds": 3, "local_epochs": 2, "batch_size": 1000, "learning_rate": 0.1,
        "local_optimizer": optimizer,
    }  # fmt: skip
    exact = parameters(full_batch(federation=work))
    gaps = []
    for z in (1e-3, 1e-6, 1e-9):
        gap = np.abs(parameters(without_noise(z, url, federation=work)) - exact).max()
        if optimizer == "sgd":
            assert gap <= 6 * 0.1 * 6**0.5 * z * 100.0 / 60 + 1e-7  # 6 standard deviations; clipping's own 1e-6/‖g‖
        gaps.append(gap)
    assert gaps[2] < 1e-6
    assert gaps[0] > 10 * gaps[1]  # while there is noise it is seen


def test_noise_to_zero_with_the_fairness_term(url: str) -> None:
    """Scores are rounded to a grid of 1/256: the witness' slope moves by at most L·step/2 for each of the two groups.

    For the Gaussian kernel of width ℓ, L = max|κ″| = 1/ℓ². One step of rate η moves the parameters by at most
    η·(2λ/P)·L·step·‖∂score/∂θ‖, and |∂score/∂θ| ≤ ‖(x, 1)‖/4 for a logistic model.
    """
    fairness = {"kernel": "gaussian:0.5", "lambda": 0.5, "samples": 10_000}
    work = {"rounds": 1, "local_epochs": 1, "batch_size": 1000, "learning_rate": 0.1}
    exact = parameters(full_batch(fairness=fairness, federation=work))
    nearly = parameters(without_noise(1e-9, url, fairness=fairness, federation=work))
    records = toy(records=80).pooled_train()
    shares = np.bincount(records.groups[:, 0]) / len(records)
    longest = float(np.linalg.norm(np.column_stack([records.features, np.ones(len(records))]), axis=1).max())
    bound = 0.1 * (2 * 0.5 / shares.min()) * (1 / 0.5**2) * (1 / 256) * longest / 4
    gap = np.abs(nearly - exact).max()
    assert gap <= bound
    without = parameters(full_batch(fairness={**fairness, "lambda": 0.0}, federation=work))
    assert gap < 0.02 * np.abs(without - exact).max()  # the fairness term itself is much larger than that
