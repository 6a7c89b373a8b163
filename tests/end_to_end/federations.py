"""Small federations for whole-run tests."""

from __future__ import annotations

import numpy as np

from privfair.datasets.records import ClientData, Federation, Records, Schema, SensitiveAttribute


def toy(
    clients: int = 3,
    records: int = 40,
    groups: int = 2,
    task: str = "binary",
    attributes: int = 1,
    label_range: tuple[float, float] = (-3.0, 3.0),
) -> Federation:
    """Clients whose labels depend on the features, which depend on the group."""
    rng = np.random.default_rng(0)
    low, high = (0.0, 1.0) if task == "binary" else label_range
    holders = []
    for k in range(clients):
        g = rng.integers(groups, size=(records, attributes))
        x = rng.normal(size=(records, 4)) + 0.5 * g[:, :1]
        place = np.clip(x.sum(axis=1) / 12 + 0.5, 0, 1)
        y = (place > 0.5).astype(float) if task == "binary" else low + (high - low) * place
        rows = Records(x, y, g, (x[:, :1] > 0))
        cut = max(1, records * 3 // 4)
        holders.append(ClientData(f"client{k}", rows.take(np.arange(cut)), rows.take(np.arange(cut, records))))
    sensitive = tuple(SensitiveAttribute(f"s{a}", tuple(str(v) for v in range(groups))) for a in range(attributes))
    schema = Schema(tuple("abcd"), task, "y", (low, high), sensitive, ("a is positive",))  # type: ignore[arg-type]
    return Federation("toy", schema, tuple(holders))
