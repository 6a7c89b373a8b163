"""Requests and replies as bytes and back."""

from __future__ import annotations

from typing import Annotated, Any

from privfair.codec import TREE, Arrays, Codec, Tagged, with_tree
from privfair.federated.messages import Asked, Reply


def _stored(arrays: Arrays) -> Arrays:
    """The arrays of a reply. Those of earlier versions, which a ledger may have stored, were named by their kind."""
    if TREE in arrays:
        return arrays
    (kind,) = {name.partition("/")[0] for name in arrays}
    fields: dict[str, Any] = {name.partition("/")[2]: name for name in sorted(arrays)}
    if kind in ("scores", "evaluation"):
        fields = {"cells" if kind == "scores" else "confusion": list(fields.values())}
    elif kind == "measures":
        fields = {"values": fields}
    return with_tree(arrays, {kind.capitalize(): fields})


_requests = Codec[Asked](Annotated[Asked, Tagged()], "request")
_replies = Codec[Reply](Annotated[Reply, Tagged()], "reply", earlier=_stored)

encode_request, decode_request = _requests.encode, _requests.decode
encode, decode = _replies.encode, _replies.decode


def carry(request: type, reply: type) -> None:
    """Make the messages of a further channel known; the request travels by itself, not in a `Bundle`."""
    _requests.also(request)
    _replies.also(reply)
