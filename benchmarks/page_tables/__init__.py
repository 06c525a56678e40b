"""The tables of figures in README.md and docs/, one module for each group of tables."""
