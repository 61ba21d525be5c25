"""An open-loop client for servers with the OpenAI API: arrivals fixed beforehand, latency from when due.

Glossary: *open loop* means that a request is sent when it is due, however many are still under way; a
client that waits for answers sends less when the server stalls and hides the stall (coordinated omission).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import ssl
import time
import urllib.error
import urllib.request
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["Answer", "Target", "arrivals", "drive", "made_prompts", "target"]

MOST_UNDER_WAY = 1000  # sockets; a server that far behind has failed the rest
MOST_BYTES = 64 << 20  # of one answer
LONGEST_LINE = 1 << 20
WORDS = (
    "token", "expert", "router", "block", "memory", "kernel", "layer", "batch", "cache", "page", "stream",
    "graph", "rank", "buffer", "queue", "clock", "signal", "river", "garden", "stone", "window", "silver",
    "copper", "market", "letter", "engine", "planet", "winter", "summer", "bridge", "harbor", "candle",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go.

    Args:
        url: Of completions or chat completions, whole.
        model: Its name there.
        max_tokens: Tokens asked for.
        timeout_s: An answer that takes longer counts as failed.
        headers: Further headers (authorisation).
        extra: Further members of the request's JSON.
    """

    url: str
    model: str
    max_tokens: int = 16
    timeout_s: float = 60.0
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: str | Sequence[int]) -> bytes:
        """The request, streamed, temperature 0."""
        what: dict[str, Any] = {"prompt": prompt}
        if self.url.endswith("/chat/completions"):
            what = {"messages": [{"role": "user", "content": prompt}]}
        fixed = {"model": self.model, "max_tokens": self.max_tokens, "temperature": 0, "stream": True}
        return json.dumps({**what, **fixed, **self.extra}).encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request; times on time.perf_counter(), durations from when it was due.

    Args:
        due_s: When it was to be sent.
        sent_s: When it was sent.
        ttft_s: To the first token; NaN where none came.
        e2e_s: To the end.
        gaps_s: Between the tokens (streamed pieces).
        error: Why it failed; empty otherwise.
    """

    due_s: float
    sent_s: float
    ttft_s: float
    e2e_s: float
    gaps_s: tuple[float, ...] = ()
    error: str = ""


def target(url: str, *, model: str = "", headers: Mapping[str, str] | None = None, **more: Any) -> Target:
    """A target by the address of a server: http://host:8000, with or without /v1/completions.

    Args:
        url: Its address.
        model: Asked from /v1/models where empty.
        headers: Further headers.
        more: max_tokens, timeout_s, extra of Target.

    Raises:
        UsageError: no http address, or nobody answers there, or it lists no model.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url} is no address of a server", hint="write http://host:port")
    base = url.rstrip("/")
    if not base.endswith("/completions"):
        base = f"{base.removesuffix('/v1')}/v1/completions"
    sent = dict(headers or {})
    return Target(base, model or _first_model(base, sent), headers=sent, **more)


def _first_model(url: str, headers: dict[str, str]) -> str:
    models = url.removesuffix("/completions").removesuffix("/chat") + "/models"
    try:
        request = urllib.request.Request(models, headers=headers)  # noqa: S310 (http and https only, see target)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            found = json.loads(answer.read(1 << 20))["data"][0]["id"]
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as why:
        what = why.reason if isinstance(why, urllib.error.URLError) else why
        raise UsageError(f"no model is listed at {models} ({what})",
                         hint="check the address, or name it with --model") from why  # fmt: skip
    return str(found)


def arrivals(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Poisson arrivals in [0, seconds), rising; the same for the same seed."""
    rng = np.random.default_rng(seed)
    count = int(rate * seconds + 10 * math.sqrt(rate * seconds) + 10)
    times = np.cumsum(rng.exponential(1 / rate, count))
    return times[times < seconds]


def made_prompts(count: int, words: int, seed: int) -> list[str]:
    """Prompts of random English words, all different from their first words on: no prefix cache helps."""
    rng = np.random.default_rng(seed)
    return [" ".join(WORDS[i] for i in row) for row in rng.integers(0, len(WORDS), (count, words))]


def drive(
    where: Target, prompts: Sequence[str | Sequence[int]], due_s: Sequence[float] | NDArray[np.float64]
) -> list[Answer]:
    """Sends each prompt when it is due and waits for all answers.

    Args:
        where: The server.
        prompts: One per arrival.
        due_s: Seconds from now, rising.
    """
    return asyncio.run(_drive(where, prompts, due_s))


async def _drive(where: Target, prompts: Sequence[Any], due_s: Any) -> list[Answer]:
    start = time.perf_counter()
    under_way = asyncio.Semaphore(MOST_UNDER_WAY)

    async def one(prompt: Any, due: float) -> Answer:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if under_way.locked():
            return Answer(due, math.nan, math.nan, math.nan, error=f"{MOST_UNDER_WAY} are under way")
        async with under_way:
            return await _ask(where, prompt, due)

    pairs = zip(prompts, due_s, strict=True)
    return await asyncio.gather(*(one(p, start + float(d)) for p, d in pairs))


async def _ask(where: Target, prompt: Any, due: float) -> Answer:
    sent = time.perf_counter()
    seen: list[float] = []
    error = ""
    try:
        async with asyncio.timeout(where.timeout_s):
            async with aclosing(_events(where, prompt)) as events:
                async for event in events:
                    if _has_text(event):
                        seen.append(time.perf_counter())  # noqa: PERF401 (kept where a later event fails)
    except TimeoutError:
        error = f"no answer in {where.timeout_s:g} s"
    except (OSError, EOFError, ValueError, asyncio.IncompleteReadError) as why:
        error = str(why) or type(why).__name__
    end = time.perf_counter()
    if not seen:
        return Answer(due, sent, math.nan, math.nan, error=error or "no token came")
    gaps = tuple(b - a for a, b in pairwise(seen))
    return Answer(due, sent, seen[0] - due, end - due, gaps, error)


async def _events(where: Target, prompt: Any) -> AsyncGenerator[dict[str, Any]]:
    """The events of a streamed answer.

    Raises:
        ValueError: the server refused, or it does not speak HTTP or JSON.
    """
    reader, writer = await _connect(where)
    try:
        parts, body = urlsplit(where.url), where.body(prompt)
        head = {"Host": parts.netloc, "Content-Type": "application/json", "Accept": "text/event-stream",
                "Content-Length": str(len(body)), "Connection": "close", **where.headers}  # fmt: skip
        told = "".join(f"{k}: {v}\r\n" for k, v in head.items())
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        writer.write(f"POST {path} HTTP/1.1\r\n{told}\r\n".encode("latin-1") + body)
        await writer.drain()
        status = (await reader.readline()).split(None, 2)
        headers = await _headers(reader)
        chunked = "chunked" in headers.get("transfer-encoding", "")
        if len(status) < 2 or status[1] != b"200":
            why = (await reader.read(300)).decode("utf-8", "replace").strip()
            raise ValueError(f"HTTP {status[1].decode('latin-1') if len(status) > 1 else 'nothing'}: {why}")
        async with aclosing(_lines(reader, chunked=chunked)) as lines:
            async for line in lines:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if isinstance(event, dict):
                    yield event
    finally:
        writer.close()


async def _connect(where: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(where.url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    return await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=LONGEST_LINE)


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    out: dict[str, str] = {}
    for _ in range(200):
        line = (await reader.readline()).strip()
        if not line:
            return out
        name, _, value = line.decode("latin-1").partition(":")
        out[name.lower()] = value.strip().lower()
    raise ValueError("more than 200 headers")


async def _lines(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncGenerator[bytes]:
    """Lines of the body, as they come."""
    rest, taken = b"", 0
    while True:
        if chunked:
            size = int((await reader.readline()).split(b";")[0] or b"0", 16)
            piece = (await reader.readexactly(size + 2))[:-2] if 0 < size <= MOST_BYTES else b""
        else:
            piece = await reader.read(1 << 16)
        if not piece:
            break
        taken += len(piece)
        if taken > MOST_BYTES:
            raise ValueError(f"the answer is longer than {MOST_BYTES >> 20} MiB")
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _has_text(event: dict[str, Any]) -> bool:
    """Whether a streamed event brings a token: text of completions, delta of chat, with or without role."""
    if "error" in event:
        raise ValueError(str(event["error"])[:300])
    choices = event.get("choices") or []
    for choice in choices if isinstance(choices, list) else [choices]:
        if not isinstance(choice, dict) or not isinstance(delta := choice.get("delta") or {}, dict):
            raise ValueError(f"an event of an unknown shape: {str(event)[:200]}")  # noqa: TRY004 (as all odd answers)
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
            return True
    return False
