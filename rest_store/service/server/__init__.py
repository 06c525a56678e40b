"""The gRPC service: `rest-store serve` and what it is made of. Loads no torch."""
