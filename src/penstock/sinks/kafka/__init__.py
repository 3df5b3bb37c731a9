"""Messages in Kafka: staged in tasks, produced in one transaction a checkpoint on the driver."""
