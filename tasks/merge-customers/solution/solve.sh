#!/bin/sh
set -eu
cat > /app/migration.sql <<'SQL'
BEGIN;

-- Who stays for whom. An email becomes a text and an id stays a number, so that the two are never equal.
CREATE TEMP TABLE keeper AS
SELECT id, MIN(id) OVER (PARTITION BY COALESCE(NULLIF(LOWER(TRIM(email, ' ')), ''), id)) AS keep_id FROM customers;

CREATE TEMP TABLE person AS
SELECT
    k.keep_id,
    MIN(c.created_on) AS created_on,
    COALESCE((
        SELECT n.name FROM customers AS n JOIN keeper AS m ON m.id = n.id
        WHERE m.keep_id = k.keep_id AND n.name <> ''
        ORDER BY n.created_on DESC, n.id DESC LIMIT 1
    ), '') AS name
FROM customers AS c JOIN keeper AS k ON k.id = c.id
GROUP BY k.keep_id;

UPDATE addresses SET customer_id = (SELECT keep_id FROM keeper WHERE id = customer_id);
UPDATE orders SET customer_id = (SELECT keep_id FROM keeper WHERE id = customer_id);

-- Which address stays for which, and whether one of them was a default.
CREATE TEMP TABLE place AS
SELECT
    id,
    customer_id,
    MIN(id) OVER same AS keep_id,
    MAX(is_default <> 0) OVER same AS was_default
FROM addresses
WINDOW same AS (PARTITION BY customer_id, street, city);

UPDATE orders SET address_id = (SELECT keep_id FROM place WHERE id = address_id) WHERE address_id IS NOT NULL;
DELETE FROM addresses WHERE id NOT IN (SELECT keep_id FROM place);
UPDATE addresses SET is_default = id = (
    SELECT keep_id FROM place WHERE place.customer_id = addresses.customer_id
    ORDER BY was_default DESC, keep_id LIMIT 1
);

DROP TABLE IF EXISTS customer_stats;
DELETE FROM customers WHERE id NOT IN (SELECT keep_id FROM keeper);
UPDATE customers SET
    email = NULLIF(LOWER(TRIM(email, ' ')), ''),
    created_on = (SELECT created_on FROM person WHERE keep_id = id),
    name = (SELECT name FROM person WHERE keep_id = id);
CREATE UNIQUE INDEX IF NOT EXISTS customers_email ON customers (email);

CREATE TABLE customer_stats (
    customer_id INTEGER PRIMARY KEY REFERENCES customers (id),
    orders INTEGER NOT NULL,
    spent_cents INTEGER NOT NULL,
    last_order TEXT
);
INSERT INTO customer_stats
SELECT c.id, COUNT(o.id), COALESCE(SUM(o.total_cents), 0), MAX(o.placed_on)
FROM customers AS c LEFT JOIN orders AS o ON o.customer_id = c.id AND o.status = 'paid'
GROUP BY c.id;

DROP TABLE keeper;
DROP TABLE person;
DROP TABLE place;

COMMIT;
SQL
python3 - <<'PY'
import sqlite3
from pathlib import Path

connection = sqlite3.connect(":memory:")
connection.execute("PRAGMA foreign_keys = ON")
for name in ("schema", "sample", "migration", "migration"):
    connection.executescript(Path(f"/app/{name}.sql").read_text())
for table in ("customers", "addresses", "orders", "customer_stats"):
    print(table, *connection.execute(f"SELECT * FROM {table}"), sep="\n  ")
PY
