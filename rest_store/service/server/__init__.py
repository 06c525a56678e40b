"""The gRPC service: `rest-store serve` and its parts. Loads no torch."""
