"""Writes `moldau.protocol.messages` from facts about Kafka's protocol.

`python -m tools.generator.facts` refreshes the checked-in facts from Apache Kafka's jars; `python -m tools.generator`
writes the code from the checked-in facts alone, so that building needs neither Java nor the network. The way through:
`schema` reads the facts, `layout` decides what lies on the wire in each version, `emit` writes the code of one message,
`tables` the registry, `__main__` the files.
"""
