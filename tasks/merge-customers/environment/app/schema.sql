CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    email TEXT,
    name TEXT NOT NULL DEFAULT '',
    created_on TEXT NOT NULL
);

CREATE TABLE addresses (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    street TEXT NOT NULL,
    city TEXT NOT NULL,
    is_default INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    address_id INTEGER REFERENCES addresses (id),
    placed_on TEXT NOT NULL,
    status TEXT NOT NULL,
    total_cents INTEGER NOT NULL
);
