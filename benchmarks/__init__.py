"""Speed beside nats-py, in one interleaved run: `make bench`. See __main__ for what is measured."""
