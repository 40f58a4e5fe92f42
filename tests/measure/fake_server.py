"""A server of a few lines that answers what a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODELS = {"data": [{"id": "tiny"}]}
Answer = tuple[int, list[bytes], bool]  # status, parts of the body, chunked


class Server:
    """answers: what to say to a POST, from its decoded body."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: Callable[[dict[str, Any]], Answer] = lambda body: stream_of("a", "b")
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send(200, [json.dumps(MODELS).encode()], False)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.bodies.append(body)
                server.headers.append(dict(self.headers))
                self.send(*server.answers(body))

            def send(self, status: int, parts: list[bytes], chunked: bool) -> None:
                self.send_response(status)
                if chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                else:
                    self.send_header("Content-Length", str(sum(map(len, parts))))
                self.end_headers()
                for part in parts:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
                if chunked and status == 200:
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def stream_of(*texts: str, usage: bool = True, done: bool = True, cut: int = 7) -> Answer:
    """A completion's stream, cut into parts of `cut` bytes wherever that falls."""
    events: list[Any] = [{"choices": [{"index": 0, "text": text}]} for text in texts]
    events.append({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    if usage:
        events.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": len(texts) + 1}})
    data = b": ping\n\n" + b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    data += b"data: [DONE]\n\n" if done else b""
    return 200, [data[start : start + cut] for start in range(0, len(data), cut)], True
