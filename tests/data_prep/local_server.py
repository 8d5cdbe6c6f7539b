"""An HTTP server with working and broken mirrors of a file; the first part of the path selects a mirror."""

import contextlib
import http.server
import threading

CONTENT = bytes(range(256)) * 1000


class Mirrors(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        span = self.headers.get("Range")
        self.server.requests.append((self.path, span))
        kind = self.path.split("/")[1]
        if self.headers["User-Agent"].startswith("Python-urllib"):
            self.send_error(403)
        elif kind in self.server.files:
            self.answer(self.server.files[kind], None)
        elif kind in ("range", "interrupted"):  # the first response of "interrupted" ends early
            self.answer(CONTENT, span, cut=kind == "interrupted" and not span)
        elif kind in ("no_range", "wrong", "short"):
            self.answer({"wrong": CONTENT[::-1], "short": CONTENT[:-1]}.get(kind, CONTENT), None)
        elif kind == "endless":  # a body without a length
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                while True:
                    self.wfile.write(CONTENT)
        elif kind == "slow":  # one byte at a time, as long as the client listens
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                for value in CONTENT:
                    self.wfile.write(bytes([value]))
        elif kind == "redirect":
            self.send_response(302)
            self.send_header("Location", self.server.location)
            self.end_headers()
        else:
            self.send_error(503 if kind == "busy" else 404)

    def answer(self, content, span, cut=False):
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : len(content) // 2 if cut else None])

    def log_message(self, *_):
        pass


class Server:
    """A server in a thread.

    Attributes:
        requests: (path, range) of each request.
        files: {mirror: content} of further files.
        server.location: address to which the mirror "redirect" redirects.
    """

    def __init__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirrors)
        self.requests = self.server.requests = []
        self.files = self.server.files = {}

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def url(self, kind):
        return f"http://127.0.0.1:{self.server.server_address[1]}/{kind}"
