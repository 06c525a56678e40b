"""The offline builder: from corpora as they exist to a datastore of suffix-array shards."""
