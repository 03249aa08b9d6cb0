"""Where everything is kept: objects, records, day-partitioned tables, manifests."""
