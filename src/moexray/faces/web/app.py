"""The live page as a Starlette application. It serves what it made itself, never a file by its name.

Loopback names only, unless a token is set; a token comes as `Authorization: Bearer`, or once as `?token=`,
which is turned into a cookie that scripts cannot read. All requests are GET and change nothing.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any

from moexray.core.json_text import json_text
from moexray.faces.plain import visible
from moexray.faces.report import render
from moexray.faces.web.page import page_policy, page_text
from moexray.live.rolling import CHARTS
from moexray.live.serve import is_loopback_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from moexray.live.rolling import Rolling

__all__ = ["make_app"]

READERS = 16  # streams at a time
BREATH_S = 1.0  # between two looks for new events
COOKIE = "moexray"
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def make_app(rolling: Rolling, *, title: str, token: str = "") -> Starlette:
    """The application.

    Args:
        rolling: What is shown.
        title: What is watched, for the head of the page.
        token: Needed for every request; empty where only loopback may ask.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.responses import (
        HTMLResponse,
        PlainTextResponse,
        RedirectResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route

    readers = asyncio.Semaphore(READERS)
    title = visible(title)

    async def page(_: Request) -> Response:
        return HTMLResponse(page_text(title), headers={"Content-Security-Policy": page_policy()})

    async def state(_: Request) -> Response:
        events = [{"seq": e.seq, "kind": e.kind, **e.data} for e in rolling.since(0)]
        charts = [{"name": c.name, "unit": c.unit, "lines": dict(c.lines)} for c in CHARTS]
        told = {"schema": "moexray.live/1", "title": title, "charts": charts, "events": events}
        return Response(_line(told), media_type="application/json")

    async def events(request: Request) -> Response:
        if readers.locked():
            return PlainTextResponse("too many readers\n", 503)
        seen = request.headers.get("last-event-id") or request.query_params.get("after", "0")
        after = int(seen) if seen.isdigit() and len(seen) < 19 else 0
        return StreamingResponse(_stream(rolling, after, readers), media_type="text/event-stream")

    async def report(request: Request) -> Response:
        number = request.path_params.get("number")
        document = rolling.diagnosis(number)
        if document is None:
            return PlainTextResponse("this diagnosis is not kept any more; the last one is at /report\n", 404)
        return HTMLResponse(await asyncio.to_thread(render, document))

    async def finding(request: Request) -> Response:
        """To the place of a verdict on the report that tells it."""
        number, wanted = request.path_params["number"], request.path_params["id"]
        found = (rolling.diagnosis(number) or {}).get("findings", [])
        place = next((i for i, f in enumerate(found, start=1) if f["id"] == wanted), None)
        return RedirectResponse(f"/report/{number}" + (f"#f{place}" if place else ""), 303)

    routes = [
        Route("/", page), Route("/state", state), Route("/events", events), Route("/report", report),
        Route("/report/{number:int}", report), Route("/report/{number:int}/{id}", finding),
    ]  # fmt: skip
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=_guard(token))])


def _guard(token: str) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = _refused(request, token) or await go_on(request)
        answer.headers.update({k: v for k, v in SAFE.items() if k not in answer.headers})
        return answer

    return guard


def _refused(request: Request, token: str) -> Response | None:
    """Why a request is not answered; a token in the address becomes a cookie."""
    from starlette.responses import PlainTextResponse, RedirectResponse

    if not token:  # a name that leads here from elsewhere is an attack on loopback (DNS rebinding)
        named = is_loopback_name(request.headers.get("host", ""))
        return None if named else PlainTextResponse("only for this machine\n", 403)
    given = request.query_params.get("token", "")
    if given and _same(given, token) and request.url.path == "/":
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return answer
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if _same(bearer, token) or _same(request.cookies.get(COOKIE, ""), token):
        return None
    return PlainTextResponse("a token is needed: open /?token=TOKEN once\n", 401)


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


async def _stream(rolling: Rolling, after: int, readers: asyncio.Semaphore) -> AsyncIterator[str]:
    """Server-sent events: what is kept after a number, then what comes; comments keep it open."""
    async with readers:
        idle = 0
        while True:
            fresh = rolling.since(after)
            for e in fresh:
                after = e.seq
                yield f"id: {e.seq}\nevent: {e.kind}\ndata: {_line(e.data)}\n\n"
            idle = 0 if fresh else idle + 1
            if idle == 15:
                idle = 0
                yield ": still here\n\n"
            await asyncio.sleep(BREATH_S)


def _line(data: dict[str, Any]) -> str:
    return json_text(data, indent=None)
