"""Records whose scores are shared: the stacked engine draws what the client alone would draw."""

from __future__ import annotations

import numpy as np
import pytest

from privfair.channels.base import respond
from privfair.config import Config
from privfair.engines.batched.engine import Engine
from privfair.federated.messages import Parameters, Scores, ScoresRequest
from privfair.runs.batched import build_stacked


@pytest.mark.parametrize("extra", [-3, 0, 5])  # 5 more than there are: noisy counts may promise too much
def test_scores_are_those_the_client_would_share(extra: int) -> None:
    config = Config.build({"data": {"name": "synthetic"}, "model": {"name": "mlp", "hidden": [4]}})
    [simulation] = build_stacked([config])
    clients = simulation.clients
    model = Parameters(simulation.replica.parameters)
    asked = [(c, ScoresRequest(2, model, np.maximum(c.cell_counts + extra, 0))) for c in clients]
    found = Engine(clients).replies(asked)
    for (client, request), reply in zip(asked, found, strict=True):
        alone = respond(client, request)
        assert isinstance(reply, Scores)
        assert isinstance(alone, Scores)
        assert [cell.size for cell in reply.cells] == np.minimum(request.quotas, client.cell_counts).tolist()
        for mine, theirs in zip(reply.cells, alone.cells, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)
