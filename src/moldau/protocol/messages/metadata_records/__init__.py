"""Records of KRaft's metadata log. Nothing is imported here."""
