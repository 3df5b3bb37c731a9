"""MySQL and MariaDB: XA or staged rows. Written in tasks, committed on the driver."""
