"""Which exchanges count, and the trainer row made of them."""
