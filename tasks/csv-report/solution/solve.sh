#!/bin/sh
set -eu
cat > /app/report.py <<'PY'
"""Sum up order exports by country."""

import csv
import sys
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

CENT = Decimal("0.01")


def rows(path):
    """Yield the orders of one export with plain field names and a Decimal amount."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        delimiter = ";" if header.count(";") > header.count(",") else ","
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter)
        names = [name.strip().lower() for name in next(reader)]
        for fields in reader:
            if not fields:
                continue
            row = dict(zip(names, fields))
            amount = row["amount"].strip()
            if delimiter == ";":
                amount = amount.replace(".", "").replace(",", ".")
            row["amount"] = Decimal(amount)
            yield row


def latest(directory):
    """Return the row that counts for each order."""
    orders = {}
    for path in sorted(directory.glob("*.csv"), key=lambda path: path.name):
        for row in rows(path):
            key, moment = row["order_id"].strip(), datetime.fromisoformat(row["updated_at"].strip())
            if key not in orders or moment >= orders[key][0]:
                orders[key] = (moment, row)
    return [row for _, row in orders.values()]


def main(source, target):
    """Write the report."""
    countries = {}
    for row in latest(Path(source)):
        status = row["status"].strip()
        if status not in ("paid", "refunded"):
            continue
        line = countries.setdefault(row["country"].strip().upper() or "ZZ", [0, 0, Decimal(0)])
        if status == "paid":
            line[0] += 1
            line[2] += row["amount"]
        else:
            line[1] += 1
    lines = sorted(countries.items(), key=lambda item: (-item[1][2], item[0]))
    lines.append(("TOTAL", [sum(line[i] for _, line in lines) for i in range(3)]))
    with open(target, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["country", "orders", "refunds", "revenue", "average"])
        for country, (orders, refunds, revenue) in lines:
            average = (revenue / orders).quantize(CENT, ROUND_HALF_UP) if orders else ""
            writer.writerow([country, orders, refunds, Decimal(revenue).quantize(CENT, ROUND_HALF_UP), average])


main(*sys.argv[1:])
PY
python3 /app/report.py /app/orders /app/report.csv
