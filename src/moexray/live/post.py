"""One POST to a receiver; whatever it answers is an answer, and a redirect is not followed.

Urllib would make a GET of it, take the page behind it (a login, say) for a yes, and show it the token.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Answer", "post"]

MAX_REPLY = 1 << 16  # bytes of an answer that are read


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """No request: urllib then reports the redirect as it does an error."""


_opener = urllib.request.build_opener(_Stay)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Args:
        status: 0: no answer.
        text: Its begin, or why there is none.
        after_s: Seconds that it asks to wait; 0 where it does not say.
    """

    status: int
    text: str = ""
    after_s: float = 0.0

    @property
    def is_taken(self) -> bool:
        """Whether the receiver has what was sent."""
        return 200 <= self.status < 300

    @property
    def may_pass_later(self) -> bool:
        """Whether it is worth another try: silence, 429, 5xx."""
        return self.status in (0, 429) or self.status >= 500


def post(url: str, body: bytes, headers: Mapping[str, str], *, token: str = "", timeout_s: float) -> Answer:
    """Sends once; never raises for what the network or the other side does.

    Args:
        url: http:// or https://.
        body: What is sent.
        headers: Content-Type and what the receiver wants beside it.
        token: Sent as `Authorization: Bearer`; empty for none.
        timeout_s: Of each step of the connection.
    """
    shown = {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, body, shown, method="POST")  # noqa: S310 - the caller checks
    try:
        with _opener.open(request, timeout=timeout_s) as answer:
            return Answer(answer.status, answer.read(MAX_REPLY).decode("utf-8", "replace"))
    except urllib.error.HTTPError as why:
        with why:
            return Answer(why.code, _text(why), _seconds(why.headers.get("Retry-After", "")))
    except (OSError, http.client.HTTPException, ValueError) as why:  # an answer that is no HTTP may raise any
        return Answer(0, str(why))


def _text(why: urllib.error.HTTPError) -> str:
    """The page of an error; it may break off."""
    try:
        return why.read(MAX_REPLY).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException, ValueError) as broken:
        return str(broken)


def _seconds(text: str) -> float:
    """Of Retry-After; its other form, a date, is left to the caller's own pauses."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0
