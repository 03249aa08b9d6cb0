"""Small records that many processes share: in files on one machine, in PostgreSQL on many."""
