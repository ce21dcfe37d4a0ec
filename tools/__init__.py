"""What makes the generated files of the repository: `make reference` runs them all."""
