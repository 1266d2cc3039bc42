"""Control records and files of the Raft quorum. Nothing is imported here."""
