"""One file per API key, each opening with its specification; `api_table` says which keys there are."""
