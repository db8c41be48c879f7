"""Check /app/migrated, and /app/migrate.py on configurations it has not seen."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

WEB = {
    "db": {
        "dsn": "postgres://db.internal:5432/shop_web",
        "host": "db.internal",
        "name": "shop_web",
        "pool": {"idle_timeout_seconds": 300, "max": 5, "password_hint": "costs 5$; ask #ops"},
        "port": 5432,
    },
    "http": {
        "allow": ["10.0.0.0/8", "192.168.0.0/16"],
        "bind": "0.0.0.0:8080",
        "body_bytes": 65536,
        "host": "shop.example",
        "public_url": "https://shop.example/?next=home",
        "request_timeout_seconds": 90,
        "slow_timeout_seconds": 1.5,
        "trusted": "",
        "zip_code": "01099",
    },
    "log": {"level": "debug", "rotate_bytes": 10485760, "targets": ["stdout", "file:/var/log/shop.example.log"]},
}
WORKER = {
    "db": {"dsn": "postgres://db.eu.internal:5432/shop", "host": "db.eu.internal", "name": "shop", "port": 5432},
    "log": {"color": True, "level": "info", "rotate_bytes": 10485760, "targets": ["syslog", "queue:jobs-eu"]},
    "queue": {"batch": 50, "drain": False, "name": "jobs-eu", "poll_interval_seconds": 0.25, "retries": -1},
    "region": {"Name": "Europe", "name": "eu"},
}
WORKER["db"]["pool"] = {"max": 2}


def migrate(text, **others):
    """Return (exit status, stdout, stderr) of migrate.py on x.ini with this text, others being name=text beside it."""
    with tempfile.TemporaryDirectory() as directory:
        for name, content in {"x": text, **others}.items():
            Path(directory, f"{name}.ini").write_text(content)
        command = [sys.executable, "/app/migrate.py", str(Path(directory, "x.ini"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        return done.returncode, done.stdout, done.stderr


class Migrate(unittest.TestCase):
    maxDiff = None

    def same(self, found, expected):
        # As texts: 90 and 90.0, or 1 and true, are not the same here.
        self.assertEqual(json.dumps(found, indent=1, sort_keys=True), json.dumps(expected, indent=1, sort_keys=True))

    def good(self, expected, text, **others):
        status, out, err = migrate(text, **others)
        self.assertEqual((status, err), (0, ""))
        self.same(json.loads(out), expected)

    def bad(self, expected, text, **others):
        self.assertEqual(migrate(text, **others), (1, "", expected + "\n"))

    def test_web(self):
        self.same(json.loads(Path("/app/migrated/web.json").read_text()), WEB)

    def test_worker(self):
        self.same(json.loads(Path("/app/migrated/worker.json").read_text()), WORKER)

    def test_reading(self):
        text = "[ a ]\nK = 1 ; one\nk=x=y\nK: no = #2\n  ; gone\n\n[b]\n  z =\n[a]\nk = 100%\n"
        self.good({"a": {"K": "1 ; one", "k": "100%", "K: no": "#2"}, "b": {"z": ""}}, text)

    def test_inheritance(self):
        top = "[meta]\nextends = y.ini\n[a]\nl_list += three\n[c]\nnew = ${a.q}\n"
        middle = "[meta]\nextends=z.ini\n[a]\nl_list+= two, 2\n!gone\n!never\n![b]\n![d]\n[b]\nx = 1\n"
        bottom = "[meta]\nextends_not = q\n[a]\nl_list = one\ngone = 1\nq = 7\n[b]\nw = 1\n[d]\nv = 1\n"
        expected = {"a": {"l": ["one", "two", "2", "three"], "q": 7}, "b": {"x": 1}, "c": {"new": 7}}
        self.good(expected, top, y=middle, z=bottom)

    def test_append_and_remove_in_one_file(self):
        text = "[a]\nx_list += 1\nx_list += 2\n!x_list\nx_list += 3\ny = 1\n!y\ny += 5\n[e]\nk = 1\n!k\n"
        self.good({"a": {"x": ["3"], "y": 5}}, text)

    def test_references(self):
        text = "[a]\nx = ${y}-${b.c.k}\ny = ${b.c.k}$$\nn = ${b.num}\ns_size = ${b.num}k\n"
        text += "[b.c]\nk = $${y}\n[b]\nnum = 1\n"
        a = {"x": "${y}$-${y}", "y": "${y}$", "n": 1, "s_bytes": 1024}
        self.good({"a": a, "b": {"c": {"k": "${y}"}, "num": 1}}, text)

    def test_references_see_the_last_value(self):
        base = "[a]\nurl = http://${host}/\nhost = one\n"
        text = "[meta]\nextends = base.ini\n[a]\nhost = two\n"
        self.good({"a": {"url": "http://two/", "host": "two"}}, text, base=base)

    def test_lengths_of_time(self):
        values = {"90": 90, "1.5s": 1.5, "250ms": 0.25, "5m": 300, "1h30m": 5400, "2d": 172800, "1m500ms": 60.5}
        values["0.5h"] = 1800
        for value, expected in values.items():
            self.good({"a": {"t_timeout_seconds": expected}}, f"[a]\nt_timeout = {value}\n")
        for value in ("", "5 m", "1m1h", "1h30", "-5s", "1.s", "5m5m", "soon", "1e3"):
            self.bad("bad value: a.t_interval", f"[a]\nt_interval = {value}\n")

    def test_sizes(self):
        for value, expected in {"512": 512, "64k": 65536, "10M": 10485760, "1g": 1073741824, "0": 0}.items():
            self.good({"a": {"s_bytes": expected}}, f"[a]\ns_size = {value}\n")
        for value in ("", "1.5k", "64kb", "-1", "k"):
            self.bad("bad value: a.s_size", f"[a]\ns_size = {value}\n")

    def test_words_and_numbers(self):
        text = "[a]\na=YES\nb=Off\nc=-7\nd=007\ne=+1\nf=1.0\ng=-0\nh=0\ni_list=1,yes\nj_list=\nk=trUe\nl=yes!\n"
        expected = {"a": True, "b": False, "c": -7, "d": "007", "e": "+1", "f": "1.0", "g": "-0", "h": 0}
        self.good({"a": {**expected, "i": ["1", "yes"], "j": [], "k": True, "l": "yes!"}}, text)

    def test_bad_lines(self):
        self.bad("x.ini:1: bad line", "k = 1\n[a]\n")
        self.bad("x.ini:3: bad line", "[a]\nk = 1\nnothing\nneither\n")
        self.bad("x.ini:2: bad line", "[a]\n= 1\n")
        self.bad("y.ini:2: bad line", "[meta]\nextends = y.ini\n[a]\nk = ${no}\n", y="[a]\n[b\n")

    def test_circles(self):
        self.bad("extends circle: x.ini", "[meta]\nextends = y.ini\n", y="[meta]\nextends = ./x.ini\n")
        self.bad("reference circle: a.x", "[0]\nk = ${a.y}\n[a]\ny = ${x}\nx = 1${y}\nw = ${x}\n")
        self.bad("reference circle: a.z", "[a]\nz = ${a.z}\n[b]\nq_size = x\n")

    def test_unknown_references(self):
        self.bad("unknown reference: ${b.nope}", "[b]\ny = 1\n[a]\nx = ${b.y}${b.nope}\nz = ${z}\n")
        self.bad("unknown reference: ${meta.owner}", "[meta]\nowner = me\n[a]\nx = ${meta.owner}\n")

    def test_conflicts(self):
        self.bad("conflict: a.x_list", "[a]\nx_list = 1\nx = 2\n")
        self.bad("conflict: db.pool", "[db.pool]\nmax = 1\n[db]\npool = 5\n")
        self.bad("conflict: db.pool", "[db.pool.deep]\nmax = 1\n[db]\npool = 5\n")


if __name__ == "__main__":
    unittest.main()
