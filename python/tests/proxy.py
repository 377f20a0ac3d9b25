"""A TCP proxy that loses replies: the request arrives and is carried out, its answer does not."""

from __future__ import annotations

import socket
import threading


class LossyProxy:
    """Forwards to a port of 127.0.0.1."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._marker: bytes | None = None
        self._left = 0
        #: Replies that were lost.
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address as a Redis."""
        return f"redis://127.0.0.1:{self.port}"

    def lose(self, marker: str, times: int = 1) -> None:
        """Loses the next replies to requests that contain this text."""
        with self._lock:
            self._marker, self._left = marker.encode(), times

    def close(self) -> None:
        """Takes no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target_port))
            loses = threading.Event()
            for source, sink in ((client, server), (server, client)):
                args = (source, sink, source is client, loses)
                threading.Thread(target=self._pump, args=args, daemon=True).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, is_request: bool, loses: threading.Event
    ) -> None:
        try:
            while data := source.recv(1 << 16):
                if is_request and self._is_to_be_lost(data):
                    loses.set()
                if not is_request and loses.is_set():
                    with self._lock:
                        self.lost += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def _is_to_be_lost(self, data: bytes) -> bool:
        with self._lock:
            if self._marker is None or self._left == 0 or self._marker not in data:
                return False
            self._left -= 1
            return True
