"""Speed: beside nats-py (`make bench`, __main__) and against another revision (`make compare`, compare)."""
