"""Parts of a datastore placed and supervised by Ray: `rest-store serve --ray`."""
