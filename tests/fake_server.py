"""A server that speaks enough of the OpenAI API: streams tokens with a delay, fails or babbles on demand."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

__all__ = ["FakeServer"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        where = urlsplit(self.path)
        if where.path == "/setting":
            self.server.settings.append(parse_qs(where.query)["is"][0])
        data = json.dumps({"data": [{"id": "tiny"}] if self.server.lists else []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, body, self.headers.get("Authorization")))
        setting = self.server.settings[-1] if self.server.settings else "A"
        mode = self.server.modes.get(setting, self.server.mode)
        if mode == "refuse":
            self.send_error(503, "overloaded")
            return
        time.sleep(self.server.delays.get(setting, 0.0))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(body["max_tokens"]):
            self._chunk(self._event(i, mode))
        self._chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, i, mode):
        if mode.startswith("{"):
            return f"data: {mode}\n\n"
        if mode == "babble":
            return "data: {not json\n\n"
        if mode == "error":
            return f"data: {json.dumps({'error': {'message': 'out of memory'}})}\n\n"
        if self.path.endswith("/chat/completions"):
            return f"data: {json.dumps({'choices': [{'delta': {'content': f't{i}'}}]})}\n\n"
        return f": comment\n\ndata: {json.dumps({'choices': [{'text': f't{i}'}]})}\n\n"

    def _chunk(self, text):
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class FakeServer(ThreadingHTTPServer):
    """Use it in a with block; `delays` and `modes` by setting, GET /setting?is=B switches."""

    daemon_threads = True

    def __init__(self, delays=(), modes=(), mode="good", *, lists=True):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.delays, self.modes, self.mode = dict(delays), dict(modes), mode
        self.settings, self.seen, self.lists = [], [], lists
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()
        self.thread.join()
