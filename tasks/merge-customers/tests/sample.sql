INSERT INTO customers VALUES
    (1, 'ann@example.org', 'Ann', '2024-01-05'),
    (2, 'bob@example.org', '', '2024-02-01'),
    (3, ' Ann@Example.org', 'Ann Lee', '2024-03-09'),
    (4, NULL, 'Counter sale', '2024-03-10'),
    (5, 'ANN@EXAMPLE.ORG ', '', '2023-12-24'),
    (6, '', 'Phone order', '2024-04-01');

INSERT INTO addresses VALUES
    (1, 3, 'Mill Lane 4', 'York', 1),
    (2, 1, 'Mill Lane 4', 'York', 0),
    (3, 5, 'High Street 1', 'Leeds', 1),
    (4, 2, 'Dock 9', 'Hull', 0);

INSERT INTO orders VALUES
    (1, 1, 2, '2024-01-06', 'paid', 1250),
    (2, 3, 1, '2024-03-09', 'paid', 800),
    (3, 5, 3, '2023-12-24', 'cancelled', 9900),
    (4, 4, NULL, '2024-03-10', 'paid', 300);
