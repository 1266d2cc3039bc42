#!/bin/sh
# kcat: a pipe in, a pipe out.
set -eu
BOOTSTRAP=${1:-${MOLDAU_BOOTSTRAP:-127.0.0.1:9092}}
TOPIC=kcat-example

# What is there: brokers, topics, partitions, leaders.
kcat -b "$BOOTSTRAP" -L

# Key and value, separated by a colon, compressed.
printf 'one:hello 1\ntwo:hello 2\nthree:hello 3\n' | kcat -b "$BOOTSTRAP" -P -t "$TOPIC" -K : -z zstd

# From the start to the end as it is now, with offsets, timestamps and headers as JSON or in a format of one's own.
kcat -b "$BOOTSTRAP" -C -t "$TOPIC" -o beginning -e -q -f 'read %o: %k=%s\n'

# The last two records.
kcat -b "$BOOTSTRAP" -C -t "$TOPIC" -o -2 -e -q -J

# The offset of a moment in time, milliseconds since 1970.
kcat -b "$BOOTSTRAP" -Q -t "$TOPIC:0:0"
