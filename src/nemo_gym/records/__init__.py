"""What is on disk and on the wire: keys, identity, rows, records and one codec. No I/O."""
