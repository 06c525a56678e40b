"""The release of this package, where no other module is needed to read it."""

__version__ = "0.1.0"
