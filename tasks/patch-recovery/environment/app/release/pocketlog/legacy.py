"""Read the binary files of pocketlog 0.x."""

import struct


def read(path):
    with open(path, "rb") as file:
        count, = struct.unpack("<I", file.read(4))
        for _ in range(count):
            size, = struct.unpack("<H", file.read(2))
            yield file.read(size).decode("latin-1")
