#!/bin/sh
set -eu
cat > /app/decode.py <<'PY'
"""Decode TLG recordings, version 2, to CSV."""

import csv
import sys
from decimal import Decimal
from pathlib import Path


class Cut(Exception):
    """The data ended too early."""


def uvarint(data, at):
    """Return (number, position behind it)."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise Cut
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def svarint(data, at):
    value, at = uvarint(data, at)
    return (value >> 1) ^ -(value & 1), at


def crc8(data):
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1) ^ 0x07 if crc & 0x80 else crc << 1
            crc &= 0xFF
    return crc


def header(data):
    """Return the channels as (name, scale) and where the frames begin."""
    if data[:4] != b"TLG\x02":
        raise Cut
    count, at = uvarint(data, 4)
    channels = []
    for _ in range(count):
        length, at = uvarint(data, at)
        if at + length + 1 > len(data):
            raise Cut
        scale = data[at + length]
        channels.append((data[at : at + length].decode(), scale - 256 if scale > 127 else scale))
        at += length + 1
    return channels, at


def payloads(data, at):
    """Yield (is a key frame, payload); (False, None) where something was damaged."""
    while at < len(data):
        if data[at] not in (0xA5, 0xA6):
            yield False, None
            at += 1
            continue
        try:
            length, body = uvarint(data, at + 1)
        except Cut:
            return
        if body + length >= len(data):
            return
        payload = data[body : body + length]
        good = crc8(payload) == data[body + length]
        yield (data[at] == 0xA6, payload) if good else (False, None)
        at = body + length + 1


def frames(data, at, count):
    """Yield (time, numbers by channel) of the frames that can be trusted."""
    trusted, time, last = False, 0, [0] * count
    for key, payload in payloads(data, at):
        if key:
            trusted, time, last = True, 0, [0] * count
        elif payload is None:
            trusted = False
        if not trusted:
            continue
        delta, place = uvarint(payload, 0)
        time += delta
        mask = int.from_bytes(payload[place : place + (count + 7) // 8], "little")
        place += (count + 7) // 8
        carried = {}
        for channel in range(count):
            if mask >> channel & 1:
                delta, place = svarint(payload, place)
                last[channel] += delta
                carried[channel] = last[channel]
        yield time, carried


def text(number, scale):
    if scale >= 0:
        return str(number * 10**scale)
    return f"{Decimal(number).scaleb(scale):.{-scale}f}"


def main(source, target):
    data = Path(source).read_bytes()
    try:
        channels, at = header(data)
    except (Cut, UnicodeDecodeError):
        print(f"{source}: not a TLG recording of version 2", file=sys.stderr)
        return 2
    with open(target, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["time_ms", *(name for name, _ in channels)])
        for time, carried in frames(data, at, len(channels)):
            values = [text(carried[n], scale) if n in carried else "" for n, (_, scale) in enumerate(channels)]
            writer.writerow([time, *values])
    return 0


sys.exit(main(*sys.argv[1:]))
PY
python3 /app/decode.py /app/flight.tlg /app/flight.csv
