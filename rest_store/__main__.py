"""`python -m rest_store` is `rest-store`."""

from rest_store.cli import main

main(prog_name="rest-store")
