"""Messages in Kafka: staged in tasks, produced on the driver in one transaction per checkpoint."""
