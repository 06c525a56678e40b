"""What drafting is worth: replay of recordings, and the `bench` and `calibrate` commands."""
