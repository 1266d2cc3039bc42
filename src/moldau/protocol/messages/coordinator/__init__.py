"""Records of the topics that coordinators keep their state in. Nothing is imported here."""
