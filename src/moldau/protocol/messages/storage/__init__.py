"""Records and files of a partition's log, local and tiered. Nothing is imported here."""
