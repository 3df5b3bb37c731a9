"""SQLite: rows staged in files, one transaction of the database a commit. Committed on the driver."""
