"""How long accounting takes beside dp-accounting: python -m benchmarks accounting."""

from __future__ import annotations

from benchmarks.measure import Result, seconds

CLIENTS = 50
STEPS = 1000
NOISE = 1.1
DELTA = 1e-5
RATES = [0.005 + 0.001 * client for client in range(CLIENTS)]


def bench_rdp_50_clients() -> Result:
    """How many times faster than 50 fresh dp-accounting accountants: ε of 50 distinct sampling rates by RDP."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    import accountant
    from accountant import Gaussian, PoissonSampled, Repeated
    from accountant.bounds import forget

    def ours() -> list[float]:
        forget()  # as in a fresh process
        return [accountant.epsilon(Repeated(PoissonSampled(q, Gaussian(NOISE)), STEPS), DELTA) for q in RATES]

    def theirs() -> list[float]:
        found = []
        for rate in RATES:
            step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(NOISE))
            found.append(RdpAccountant().compose(step, STEPS).get_epsilon(DELTA))
        return found

    fast, slow = ours(), theirs()  # imports and first calls are not what is measured
    worst = max(a / b - 1.0 for a, b in zip(fast, slow, strict=True))
    if worst > 1e-3:
        raise ArithmeticError(f"our epsilon is {worst:.2%} above dp-accounting's")
    ratio = seconds(theirs) / seconds(ours, 3)
    return Result("RDP of 50 clients with distinct rates, against dp-accounting", ratio, 5.0, "x")


def run() -> list[Result]:
    """All results of this file."""
    return [bench_rdp_50_clients()]


if __name__ == "__main__":
    for result in run():
        print(result)
