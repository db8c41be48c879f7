"""Check /app/flight.csv, and /app/decode.py on recordings it has not seen."""

import hashlib
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FLIGHT_LINES = 110
FLIGHT_SHA256 = "0d6fbb0d0cf26e4c4feb398e83d7dfae1a7b606d37a1ae71cd96b7a3408e95c0"


def uvarint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def svarint(number):
    return uvarint(number * 2 if number >= 0 else -number * 2 - 1)


def crc8(data):
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 0x107) if crc & 0x80 else crc << 1
    return crc


def header(*channels):
    parts = [b"TLG\x02", uvarint(len(channels))]
    for name, scale in channels:
        parts.append(uvarint(len(name.encode())) + name.encode() + bytes([scale & 0xFF]))
    return b"".join(parts)


def frame(sync, time, numbers, count, damage=0):
    """Return a frame with these numbers by channel; `damage` is put upon its checksum."""
    mask = sum(1 << channel for channel in numbers)
    payload = uvarint(time) + mask.to_bytes((count + 7) // 8, "little")
    payload += b"".join(svarint(numbers[channel]) for channel in sorted(numbers))
    return bytes([sync]) + uvarint(len(payload)) + payload + bytes([crc8(payload) ^ damage])


def key(time, numbers, count=2, damage=0):
    return frame(0xA6, time, numbers, count, damage)


def delta(time, numbers, count=2, damage=0):
    return frame(0xA5, time, numbers, count, damage)


def decode(data):
    """Return (exit status, CSV lines or None) for a recording."""
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory, "in.tlg"), Path(directory, "out.csv")
        source.write_bytes(data)
        command = [sys.executable, "/app/decode.py", str(source), str(target)]
        done = subprocess.run(command, capture_output=True, timeout=10, cwd=directory)
        return done.returncode, target.read_bytes().decode().split("\n") if target.exists() else None


class Decode(unittest.TestCase):
    def rows(self, data):
        status, lines = decode(data)
        self.assertEqual(status, 0)
        self.assertEqual(lines.pop(), "", "the last line is not ended")
        return lines

    def test_flight(self):
        data = Path("/app/flight.csv").read_bytes()
        self.assertEqual(data.count(b"\n"), FLIGHT_LINES)
        self.assertEqual(hashlib.sha256(data).hexdigest(), FLIGHT_SHA256)

    def test_values_and_scales(self):
        data = header(("alt", -2), ("rpm", 1), ("höhe,m", 0)) + key(300, {0: -5, 1: 150, 2: 1 << 40}, 3)
        data += delta(0, {0: 4}, 3) + delta(200, {0: 1, 2: -1}, 3)
        expected = [
            'time_ms,alt,rpm,"höhe,m"',
            "300,-0.05,1500,1099511627776",
            "300,-0.01,,",
            "500,0.00,,1099511627775",
        ]
        self.assertEqual(self.rows(data), expected)

    def test_small_scale(self):
        data = header(("v", -9),) + key(0, {0: -12}, 1) + delta(1, {0: 3000000012}, 1)
        self.assertEqual(self.rows(data), ["time_ms,v", "0,-0.000000012", "1,3.000000000"])

    def test_key_frame_resets(self):
        data = header(("a", 0), ("b", 0)) + key(10, {0: 7, 1: 9}) + delta(5, {0: 1})
        data += key(100, {0: 3}) + delta(1, {1: 4})
        self.assertEqual(self.rows(data), ["time_ms,a,b", "10,7,9", "15,8,", "100,3,", "101,,4"])

    def test_damaged_delta_spoils_what_follows(self):
        data = header(("a", 0), ("b", 0)) + key(10, {0: 7}) + delta(1, {0: 1}, damage=0x40) + delta(1, {0: 1})
        data += key(20, {0: 5}) + delta(2, {0: 5})
        self.assertEqual(self.rows(data), ["time_ms,a,b", "10,7,", "20,5,", "22,10,"])

    def test_damaged_key_frame(self):
        data = header(("a", 0), ("b", 0)) + delta(1, {0: 1}) + key(10, {0: 7}, damage=1) + delta(1, {0: 1})
        data += key(20, {0: 5, 1: 1}) + key(30, {0: 6}, damage=1) + delta(2, {0: 5}) + key(40, {})
        self.assertEqual(self.rows(data), ["time_ms,a,b", "20,5,1", "40,,"])

    def test_lost_bytes(self):
        data = header(("a", 0), ("b", 0)) + key(10, {0: 7}) + b"\x00\x13\x37" + delta(1, {0: 1})
        data += key(20, {0: 5}) + delta(1, {1: -1})
        self.assertEqual(self.rows(data), ["time_ms,a,b", "10,7,", "20,5,", "21,,-1"])

    def test_cut_off(self):
        whole = header(("a", 0), ("b", 0)) + key(10, {0: 7}) + delta(1, {0: 1})
        for cut in (1, 2, len(delta(1, {0: 1})) - 1):
            self.assertEqual(self.rows(whole[:-cut]), ["time_ms,a,b", "10,7,"], cut)

    def test_more_than_eight_channels(self):
        names = [f"c{n}" for n in range(10)]
        data = header(*((name, 0) for name in names)) + key(1, {0: 1, 7: 2, 8: 3, 9: -4}, 10)
        self.assertEqual(self.rows(data), ["time_ms," + ",".join(names), "1,1,,,,,,,2,3,-4"])

    def test_not_a_recording(self):
        good = header(("a", 0)) + key(1, {0: 1}, 1)
        for data in (b"", b"TLG", b"PNG" + good[3:], b"TLG\x03" + good[4:], b"time_ms,a\n1,1\n"):
            self.assertEqual(decode(data), (2, None), data)


if __name__ == "__main__":
    unittest.main()
