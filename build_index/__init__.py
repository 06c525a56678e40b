"""The offline builder: from corpora to a datastore of suffix-array shards."""
