"""Listen on a loopback port where this runs, and carry its connections over stdin and stdout; standard library only.

It is handed to any Python from 3.6 on as an argument, so nothing newer may stand here. `_relay.pl` does the same, and
`_frames` says what the frames mean. It ends with its stdin.
"""

import collections
import os
import select
import socket
import struct
import sys

OPEN, DATA, END, CLOSE, MORE = range(1, 6)
WINDOW = 1 << 18
CHUNK = 1 << 15
MOST = 400  # connections at a time: select knows no descriptor above 1023
HEAD = struct.Struct(">BII")


class Connection:
    """One connection: what the host may still be sent of it, and what is yet to be written to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.credit = WINDOW
        self.pending = bytearray()
        self.ended = False  # the host sends no more
        self.finished = False  # the other side sends no more


class Relay:
    """Everything between one listener and one pair of pipes."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.connections: dict[int, Connection] = {}
        self.number = 0
        self.incoming = bytearray()
        self.outgoing: collections.deque[bytes] = collections.deque()
        self.alive = True

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Queue a frame for the host."""
        self.outgoing.append(HEAD.pack(kind, number, len(payload)) + payload)

    def run(self) -> None:
        """Carry until stdin ends."""
        while self.alive:
            reading = [0]
            if len(self.connections) < MOST:
                reading.append(self.listener.fileno())
            numbers = {each.sock.fileno(): number for number, each in self.connections.items()}
            reading += [each.sock.fileno() for each in self.connections.values() if each.credit and not each.finished]
            writing = [each.sock.fileno() for each in self.connections.values() if each.pending]
            readable, writable, _ = select.select(reading, writing + ([1] if self.outgoing else []), [])
            for descriptor in writable:
                if descriptor == 1:
                    self.flush()
                else:
                    self.write(numbers[descriptor])
            for descriptor in readable:
                if descriptor == 0:
                    self.receive()
                elif descriptor == self.listener.fileno():
                    self.accept()
                elif numbers[descriptor] in self.connections:
                    self.read(numbers[descriptor])

    def accept(self) -> None:
        """Take a new connection."""
        try:
            sock, _ = self.listener.accept()
        except OSError:  # it is gone already, or there are no descriptors left
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number += 2
        self.connections[self.number] = Connection(sock)
        self.send(OPEN, self.number)

    def read(self, number: int) -> None:
        """Send the host what a connection has to say."""
        connection = self.connections[number]
        try:
            data = connection.sock.recv(min(CHUNK, connection.credit))
        except BlockingIOError:
            return
        except OSError:
            self.drop(number)
            return
        if data:
            connection.credit -= len(data)
            self.send(DATA, number, data)
        else:
            connection.finished = True
            self.send(END, number)
            self.settle(number)

    def write(self, number: int) -> None:
        """Write what is pending to a connection."""
        connection = self.connections.get(number)
        if connection is None:
            return
        try:
            sent = connection.sock.send(connection.pending)
        except BlockingIOError:
            return
        except OSError:
            self.drop(number)
            return
        del connection.pending[:sent]
        self.send(MORE, number, struct.pack(">I", sent))
        self.settle(number)

    def settle(self, number: int) -> None:
        """Pass on the end of what the host sends, and let go of a connection that is over both ways."""
        connection = self.connections[number]
        if connection.ended and not connection.pending:
            if connection.finished:
                connection.sock.close()
                del self.connections[number]
            else:
                try:
                    connection.sock.shutdown(socket.SHUT_WR)
                except OSError:
                    self.drop(number)

    def drop(self, number: int) -> None:
        """Tell the host that a connection broke."""
        self.connections.pop(number).sock.close()
        self.send(CLOSE, number)

    def receive(self) -> None:
        """Do what the host's frames say."""
        data = os.read(0, 1 << 16)
        self.alive = bool(data)
        self.incoming += data
        while len(self.incoming) >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self.incoming)
            if len(self.incoming) < HEAD.size + size:
                return
            payload = bytes(self.incoming[HEAD.size : HEAD.size + size])
            del self.incoming[: HEAD.size + size]
            connection = self.connections.get(number)
            if connection is None:
                continue
            if kind == DATA:
                connection.pending += payload
            elif kind == MORE:
                connection.credit += struct.unpack(">I", payload)[0]
            elif kind == END:
                connection.ended = True
                self.settle(number)
            elif kind == CLOSE:
                self.connections.pop(number).sock.close()

    def flush(self) -> None:
        """Write to stdout what it takes."""
        data = self.outgoing.popleft()
        try:
            sent = os.write(1, data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.outgoing.appendleft(data[sent:])


def main(port: int) -> None:
    """Listen, say so, and carry."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        os.write(1, f"\nrelay failed: port {port}: {error.strerror}\n".encode())
        return
    os.write(1, f"\nrelay ready: {listener.getsockname()[1]}\n".encode())
    os.set_blocking(1, False)
    listener.setblocking(False)
    Relay(listener).run()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except BrokenPipeError:
        os._exit(1)
