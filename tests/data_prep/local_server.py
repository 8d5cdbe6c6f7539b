"""A real HTTP server with good and bad mirrors of one file, the first part of the path says which."""

import http.server
import threading

CONTENT = bytes(range(256)) * 1000


class Mirrors(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        span = self.headers.get("Range")
        self.server.asked.append((self.path, span))
        kind = self.path.split("/")[1]
        if self.headers["User-Agent"].startswith("Python-urllib"):
            self.send_error(403)
        elif kind in self.server.files:
            self.answer(self.server.files[kind], None)
        elif kind == "range":
            self.answer(CONTENT, span)
        elif kind == "plain":
            self.answer(CONTENT, None)
        elif kind == "breaks":  # the first answer ends early
            self.answer(CONTENT, span, cut=not span)
        elif kind == "wrong":
            self.answer(CONTENT[::-1], None)
        elif kind == "short":
            self.answer(CONTENT[:-1], None)
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
    """``url(kind)`` of a mirror; ``asked``: (path, range) of each request; ``files``: further contents."""

    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirrors)
        self.asked = self.server.asked = []
        self.files = self.server.files = {}
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def url(self, kind):
        return f"http://127.0.0.1:{self.server.server_address[1]}/{kind}"
