"""Generated messages, one module per API. Nothing is imported here: each costs when it is used."""
