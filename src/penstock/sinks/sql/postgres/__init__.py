"""PostgreSQL: `PREPARE TRANSACTION` or staged rows. Written in tasks, committed on the driver."""
