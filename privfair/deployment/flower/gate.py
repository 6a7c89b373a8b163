"""The door of a SuperLink for data holders: their own calls pass, everything else is refused.

    python -m privfair.deployment.flower.gate --link 127.0.0.1:8000 --root-certificates ca.pem \
        --host 0.0.0.0 --port 8443 --certificate link.pem --key link.key

A SuperLink answers data holders, operators (start a run, register a node) and running apps on one port, and asks only
the data holders who they are. So it listens on the loopback address, where its operator works, and this program, which
knows nothing but the holders' calls, listens for the network.
"""

from __future__ import annotations

import argparse
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

CALLS = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab"),
    *("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"),
)
# These describe one connection, or the encoding that was undone on the way; they are set anew.
LOCAL = {"host", "connection", "keep-alive", "content-length", "content-encoding", "transfer-encoding"}


def gate(link: str, root_certificates: Path) -> Starlette:
    """An application that passes the calls of authenticated data holders on to the SuperLink at `link`."""
    trust = ssl.create_default_context(cafile=str(root_certificates))

    @asynccontextmanager
    async def connected(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=f"https://{link}", verify=trust, timeout=None) as client:
            app.state.client = client
            yield

    routes = [Route(f"/v1/fleet/{call}", _forward, methods=["POST"]) for call in CALLS]
    return Starlette(routes=routes, lifespan=connected)


async def _forward(request: Request) -> Response:
    client: httpx.AsyncClient = request.app.state.client
    try:
        answer = await client.post(
            request.url.path, content=await request.body(), headers=_kept(request.headers.items())
        )
    except httpx.TransportError:  # a SuperNode that is told so tries again
        return PlainTextResponse("The SuperLink does not answer.", status_code=502)
    return Response(answer.content, answer.status_code, headers=_kept(answer.headers.items()))


def _kept(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in LOCAL}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and listen until told to end."""
    parser = argparse.ArgumentParser(description="The door of a SuperLink for data holders.")
    parser.add_argument("--link", required=True, metavar="HOST:PORT", help="where the SuperLink listens")
    parser.add_argument("--root-certificates", required=True, type=Path, help="the authority of its certificate")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--certificate", required=True, help="the certificate shown to data holders")
    parser.add_argument("--key", required=True, help="its private key")
    given = parser.parse_args(arguments)
    uvicorn.run(
        gate(given.link, given.root_certificates),
        host=given.host,
        port=given.port,
        ssl_certfile=given.certificate,
        ssl_keyfile=given.key,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
