"""What the golden wire test has each surface of the library do, with the public API alone."""
