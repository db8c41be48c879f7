"""Run /app/migration.sql on data it has not seen and look at every table afterwards."""

import random
import sqlite3
import unittest
from pathlib import Path

SCHEMA = Path(__file__).with_name("schema.sql").read_text()
STATS = "customer_stats"


def database(customers=(), addresses=(), orders=()):
    """Return a database in memory with these rows."""
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.executescript(SCHEMA)
    fill(connection, customers, addresses, orders)
    return connection


def fill(connection, customers=(), addresses=(), orders=()):
    connection.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", customers)
    connection.executemany("INSERT INTO addresses VALUES (?, ?, ?, ?, ?)", addresses)
    connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", orders)
    connection.commit()


def reference(customers, addresses, orders):
    """Return what the four tables must hold."""
    key = {row[0]: (row[1] or "").strip(" ") for row in customers}
    key = {number: fold(email) or number for number, email in key.items()}
    keep = {number: min(other for other in key if key[other] == key[number]) for number in key}
    people = []
    for number in sorted(set(keep.values())):
        group = [row for row in customers if keep[row[0]] == number]
        named = [row for row in group if row[2]]
        name = max(named, key=lambda row: (row[3], row[0]))[2] if named else ""
        email = None if key[number] == number else key[number]
        people.append((number, email, name, min(row[3] for row in group)))
    moved = [(number, keep[owner], *rest) for number, owner, *rest in addresses]
    same = {row[0]: min(other[0] for other in moved if other[1:4] == row[1:4]) for row in moved}
    was_default = {same[row[0]] for row in moved if row[4]}
    places = []
    for row in sorted(moved):
        if same[row[0]] == row[0]:
            own = [other[0] for other in moved if other[1] == row[1] and same[other[0]] == other[0]]
            chosen = min([number for number in own if number in was_default] or own)
            places.append((*row[:4], int(row[0] == chosen)))
    kept = [(number, keep[owner], same.get(place), *rest) for number, owner, place, *rest in sorted(orders)]
    stats = []
    for number, *_ in people:
        paid = [row for row in kept if row[1] == number and row[4] == "paid"]
        stats.append((number, len(paid), sum(row[5] for row in paid), max((row[3] for row in paid), default=None)))
    return {"customers": people, "addresses": places, "orders": kept, STATS: stats}


def fold(text):
    """Return the text with ASCII letters in lower case."""
    return "".join(chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in text)


def some_rows(rng, first, count, known=()):
    """Return random rows whose ids begin at `first`; `known` are ids of customers that are there already."""
    emails = ["ann@x.org", " Ann@x.org", "ANN@X.ORG  ", "bob@x.org", "bOb@x.org", None, "", "  "]
    emails += ["\u00c4da@x.org", "\u00e4da@x.org", "1", "2", *(f"c{number}@x.org" for number in range(4))]
    day = lambda: f"2024-{rng.randrange(1, 13):02}-{rng.randrange(1, 4):02}"  # noqa: E731
    ids = range(first, first + count)
    customers = [(n, rng.choice(emails), rng.choice(["", "A", "B", f"N{n}"]), day()) for n in ids]
    owners = [*ids, *known]
    addresses = [
        (n, rng.choice(owners), rng.choice(["s1", "s2", "S1"]), rng.choice(["York", "Hull"]), rng.randrange(2))
        for n in ids
    ]
    rng.shuffle(customers)
    places = [None, *ids]
    orders = [
        (n, rng.choice(owners), rng.choice(places), day(), rng.choice(["paid", "paid", "open"]), rng.randrange(9999))
        for n in range(first, first + 2 * count)
    ]
    return customers, addresses, orders


class Migration(unittest.TestCase):
    maxDiff = None

    def run_script(self, connection):
        connection.executescript(Path("/app/migration.sql").read_text())
        self.assertFalse(connection.in_transaction, "the script leaves a transaction open")
        self.assertEqual(connection.execute("PRAGMA foreign_keys").fetchone(), (1,), "foreign keys were switched off")
        self.assertEqual(connection.execute("PRAGMA foreign_key_check").fetchall(), [])

    def tables(self, connection):
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("customers", "addresses", "orders", STATS)
        }

    def check(self, customers, addresses=(), orders=()):
        connection = database(customers, addresses, orders)
        self.run_script(connection)
        self.assertEqual(self.tables(connection), reference(customers, addresses, orders))
        return connection

    def test_sample(self):
        connection = database()
        connection.executescript(Path(__file__).with_name("sample.sql").read_text())
        self.run_script(connection)
        found = self.tables(connection)
        self.assertEqual(
            found["customers"],
            [
                (1, "ann@example.org", "Ann Lee", "2023-12-24"),
                (2, "bob@example.org", "", "2024-02-01"),
                (4, None, "Counter sale", "2024-03-10"),
                (6, None, "Phone order", "2024-04-01"),
            ],
        )
        self.assertEqual(found["addresses"][0], (1, 1, "Mill Lane 4", "York", 1))
        self.assertEqual([row[2] for row in found["orders"]], [1, 1, 3, None])
        self.assertEqual(found[STATS][0], (1, 2, 2050, "2024-03-09"))

    def test_empty_database(self):
        self.check([])

    def test_emails(self):
        rows = [(9, "Z@q.org", "z", "2024-01-01"), (3, " z@Q.ORG ", "", "2024-02-01"), (5, "z@q.or", "t", "2024-01-01")]
        self.check([*rows, (1, " ", "a", "2024-01-01"), (2, None, "b", "2024-01-01"), (4, "", "c", "2024-01-01")])

    def test_names(self):
        rows = [(1, "a", "old", "2024-01-01"), (2, "A", "same day", "2024-05-01"), (3, "a ", "this", "2024-05-01")]
        self.check([*rows, (4, "a", "", "2024-06-01")])

    def test_defaults(self):
        customers = [(1, "a", "", "2024-01-01"), (2, "A", "", "2024-01-01"), (3, "b", "", "2024-01-01")]
        addresses = [(1, 1, "s", "c", 0), (2, 2, "t", "c", 1), (3, 2, "s", "c", 1)]
        addresses += [(4, 3, "s", "c", 0), (5, 3, "t", "c", 0)]
        orders = [(1, 2, 3, "2024-01-01", "open", 5), (2, 3, 5, "2024-01-01", "paid", 7)]
        self.check(customers, addresses, orders)

    def test_random_databases(self):
        rng = random.Random(4711)
        for _ in range(40):
            self.check(*some_rows(rng, 1, rng.randrange(1, 14)))

    def test_second_run(self):
        rng = random.Random(99)
        for _ in range(10):
            connection = self.check(*some_rows(rng, 1, 8))
            before = self.tables(connection)
            self.run_script(connection)
            self.assertEqual(self.tables(connection), before)

    def test_second_run_after_new_rows(self):
        customers = [(1, "a@x", "A", "2024-01-02"), (2, " A@x", "B", "2024-01-01")]
        connection = self.check(customers, [(1, 2, "s", "c", 0)], [(1, 2, 1, "2024-01-01", "paid", 100)])
        new = [(7, " ", "N", "2024-03-01"), (8, "a@x ", "", "2023-01-01"), (9, "A@X", "C", "2024-02-02")]
        fill(connection, new, [(9, 8, "s", "c", 0)], [(5, 8, 9, "2024-09-09", "paid", 1)])
        rows = self.tables(connection)
        self.run_script(connection)
        self.assertEqual(self.tables(connection), reference(rows["customers"], rows["addresses"], rows["orders"]))

    def test_schema(self):
        connection = self.check([(1, "a", "", "2024-01-01")])
        query = "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
        tables = [("table", name) for name in ("addresses", STATS, "customers", "orders")]
        expected = [*tables[:3], ("index", "customers_email"), *tables[3:]]
        self.assertEqual(connection.execute(query).fetchall(), expected)
        self.assertEqual(connection.execute("SELECT name FROM sqlite_temp_master").fetchall(), [])
        with self.assertRaises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO customers VALUES (2, 'a', '', '2024-01-01')")
        connection.execute("INSERT INTO customers VALUES (2, NULL, '', '2024-01-01')")
        columns = [row[1:4] for row in connection.execute(f"PRAGMA table_info({STATS})")]
        names = ["customer_id", "orders", "spent_cents", "last_order"]
        self.assertEqual([column[0] for column in columns], names)
        self.assertEqual([column[2] for column in columns[1:]], [1, 1, 0])
        self.assertEqual(connection.execute(f"PRAGMA foreign_key_list({STATS})").fetchone()[2], "customers")


if __name__ == "__main__":
    unittest.main()
