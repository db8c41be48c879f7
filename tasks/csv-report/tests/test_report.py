"""Check /app/report.csv, and /app/report.py on orders it has not seen."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SHOWN = """\
country,orders,refunds,revenue,average
IT,1,0,1310.40,1310.40
DE,4,0,1243.83,310.96
ES,2,0,268.85,134.43
FR,1,1,89.95,89.95
PT,3,0,83.35,27.78
ZZ,1,0,15.00,15.00
AT,0,1,0.00,
TOTAL,12,2,3011.38,250.95
"""


def report(files):
    """Return what report.py writes for a directory with these files."""
    with tempfile.TemporaryDirectory() as directory:
        orders, output = Path(directory, "in"), Path(directory, "out.csv")
        orders.mkdir()
        for name, data in files.items():
            (orders / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        command = [sys.executable, "/app/report.py", str(orders), str(output)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, cwd=directory)
        if done.returncode:
            raise AssertionError(f"report.py ended with {done.returncode}: {done.stderr[-500:]}")
        return output.read_bytes().decode()


class Report(unittest.TestCase):
    maxDiff = None

    def test_shown_orders(self):
        self.assertEqual(Path("/app/report.csv").read_bytes().decode(), SHOWN)

    def test_moments_not_texts_decide(self):
        text = (
            "order_id,country,status,amount,updated_at\n"
            "1,SE,paid,10.00,2025-05-01T01:00:00+03:00\n"
            "1,SE,cancelled,10.00,2025-04-30T23:00:00+00:00\n"
            "2,SE,paid,4.00,2025-05-01T12:00:00-05:00\n"
            "2,SE,refunded,4.00,2025-05-01T16:59:59+00:00\n"
        )
        self.assertEqual(report({"a.csv": text}).splitlines()[1:], ["SE,1,0,4.00,4.00", "TOTAL,1,0,4.00,4.00"])

    def test_same_moment_later_file_wins(self):
        head = "order_id,country,status,amount,updated_at\n"
        files = {
            "b.csv": head + "7,NO,refunded,5.00,2025-05-01T10:00:00+00:00\n",
            "a.csv": head + "7,NO,paid,5.00,2025-05-01T12:00:00+02:00\n",
            "c.txt": head + "7,NO,paid,9.00,2026-05-01T12:00:00+02:00\n",
        }
        self.assertEqual(report(files).splitlines()[1:], ["NO,0,1,0.00,", "TOTAL,0,1,0.00,"])

    def test_decimal_comma_and_thousands(self):
        text = (
            "status;amount;ORDER_ID ; country;updated_at\r\n"
            "paid;1.234.567,89;1;nl;2025-05-01T10:00:00+00:00\r\n"
            'paid;"12,5";2;NL;2025-05-01T10:00:00+00:00\r\n'
            "paid;1.000;3;BE;2025-05-01T10:00:00+00:00\r\n"
        )
        expected = ["NL,2,0,1234580.39,617290.20", "BE,1,0,1000.00,1000.00", "TOTAL,3,0,1235580.39,411860.13"]
        self.assertEqual(report({"x.csv": b"\xef\xbb\xbf" + text.encode()}).splitlines()[1:], expected)

    def test_cents_are_exact_and_halves_go_up(self):
        rows = [f"{n},DK,paid,0.10,2025-05-01T10:00:00+00:00" for n in range(3)]
        rows += ["8,FI,paid,1.00,2025-05-01T10:00:00+00:00", "9,FI,paid,1.01,2025-05-01T10:00:00+00:00"]
        text = "order_id,country,status,amount,updated_at\n" + "\n".join(rows) + "\n"
        expected = ["FI,2,0,2.01,1.01", "DK,3,0,0.30,0.10", "TOTAL,5,0,2.31,0.46"]
        self.assertEqual(report({"x.csv": text}).splitlines()[1:], expected)

    def test_quoted_fields_and_order_of_ties(self):
        text = (
            'order_id,"country",status,amount,updated_at,note\n'
            '1,"si",paid,3.00,2025-05-01T10:00:00+00:00,"a, b; c"\n'
            '2,HR,paid,3.00,2025-05-01T10:00:00+00:00,"two\nlines"\n'
            '3,,paid,3.00,2025-05-01T10:00:00+00:00,\n'
        )
        expected = ["HR,1,0,3.00,3.00", "SI,1,0,3.00,3.00", "ZZ,1,0,3.00,3.00", "TOTAL,3,0,9.00,3.00"]
        self.assertEqual(report({"x.csv": text}).splitlines()[1:], expected)


if __name__ == "__main__":
    unittest.main()
