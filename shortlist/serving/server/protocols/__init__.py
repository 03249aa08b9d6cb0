"""The V2 inference protocol over HTTP and gRPC."""
