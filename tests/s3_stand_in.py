"""A stand-in for S3 on the loopback: lists and serves the files of a folder, as much as reading needs.

It speaks ListObjectsV2, HeadObject and GetObject with ranges, path style, without signatures. It is not S3.
"""

import hashlib
import threading
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "captures"


@contextmanager
def serve(folder):
    """Yields the endpoint URL of a store whose one bucket holds the files of the folder."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer(body=True)

        def do_HEAD(self):
            self.answer(body=False)

        def answer(self, *, body):
            url = urlsplit(self.path)
            bucket, _, key = unquote(url.path).lstrip("/").partition("/")
            if bucket != BUCKET:
                self.send(404, b"<Error><Code>NoSuchBucket</Code></Error>", body=body)
            elif not key:
                self.send(200, listing(folder, parse_qs(url.query)), body=body)
            elif not (folder / key).is_file():
                self.send(404, b"<Error><Code>NoSuchKey</Code></Error>", body=body)
            else:
                self.send(200, (folder / key).read_bytes(), body=body, kind="binary/octet-stream")

        def send(self, status, content, *, body, kind="application/xml"):
            headers = {"ETag": f'"{hashlib.md5(content).hexdigest()}"', "Last-Modified": formatdate(usegmt=True), "Content-Type": kind}
            if status == 200 and (asked := self.headers.get("Range")):
                first, last = asked.removeprefix("bytes=").split("-")
                total = len(content)
                content = content[int(first) : int(last) + 1 if last else None]
                headers["Content-Range"] = f"bytes {first}-{int(first) + len(content) - 1}/{total}"
                status = 206
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def listing(folder, query):
    prefix = query.get("prefix", [""])[0]
    between = query.get("delimiter", [""])[0]
    keys = sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())
    keys = [k for k in keys if k.startswith(prefix)]
    common = sorted({prefix + k[len(prefix) :].split(between)[0] + between for k in keys if between and between in k[len(prefix) :]})
    if between:
        keys = [k for k in keys if between not in k[len(prefix) :]]
    rows = "".join(
        f"<Contents><Key>{escape(k)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f'<ETag>"{hashlib.md5((folder / k).read_bytes()).hexdigest()}"</ETag>'
        f"<Size>{(folder / k).stat().st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for k in keys
    ) + "".join(f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in common)
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(keys)}</KeyCount><MaxKeys>1000</MaxKeys>"
        f"<IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
    ).encode()
