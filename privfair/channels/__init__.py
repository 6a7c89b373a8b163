"""The kinds of release: what a client may be asked for, and everything that follows from it. See `channels.base`."""

from privfair.channels.base import register
from privfair.channels.counts import CountsChannel
from privfair.channels.evaluation import EvaluationChannel, MeasuresChannel
from privfair.channels.features import FeaturesChannel
from privfair.channels.moments import MomentsChannel, ProductsChannel
from privfair.channels.scores import ScoresChannel
from privfair.channels.updates import UpdatesChannel

for channel in (
    CountsChannel(),
    MomentsChannel(),
    ProductsChannel(),
    ScoresChannel(),
    FeaturesChannel(),
    UpdatesChannel(),
    MeasuresChannel(),
    EvaluationChannel(),
):
    register(channel)
