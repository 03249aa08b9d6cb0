"""Rules of valid logs: of rows, of days and of whole tables, with the quarantine of rows that break them."""
