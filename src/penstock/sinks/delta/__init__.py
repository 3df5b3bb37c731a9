"""Delta Lake: Parquet files staged in tasks, one Delta commit a checkpoint on the driver."""
