"""Fraud rules by broadcast: payments of every card are judged by rules that change while the job runs; alerts go into JSON files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as ps

PAYMENTS = [("ada", 40), ("bob", 700), ("ada", 60), ("cyd", 90)]
RULES = [[("most", 500)], [("most", 80), ("total", 150)]]
"""What is told before the first run, and before all others: how much a payment may be, and all payments of a card together."""


class Fraud(ps.KeyedProcess):
    """Add up the payments of a card, and compare them with the rules."""

    total = ps.ValueState("long", default=0)
    rules = ps.BroadcastState("string", "long")

    def process_broadcast(self, rows: Any, ctx: ps.types.Context) -> None:  # noqa: ARG002
        """Learn what changes in the rules; called in every subtask, before the payments of the same batch."""
        for rule in rows:
            self.rules[rule.name] = rule.limit

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> Iterator[tuple[str, str, int]]:  # noqa: ARG002
        """Handle the payments of one card in one batch."""
        for payment in rows:
            self.total.value += payment.amount
            found = {"most": payment.amount, "total": self.total.value}
            for rule, limit in sorted(self.rules.items()):
                if found[rule] > limit:
                    yield key, rule, found[rule]


def job(spark: SparkSession) -> ps.Job:
    """Some payments more, and the job that judges them; `penstock run examples/fraud_rules.py` finds it by this name."""
    payment_log = ps.sources.PartitionedLog("fraud/payments", "card string, amount long", partitions=1)
    rule_log = ps.sources.PartitionedLog("fraud/rules", "name string, limit long", partitions=1)
    told = RULES[0 if not payment_log.end_offsets()[0] else 1]
    rule_log.append(0, [{"name": name, "limit": limit} for name, limit in told])
    payment_log.append(0, [{"card": card, "amount": amount} for card, amount in PAYMENTS])

    made = ps.Job("fraud", storage="fraud/storage")
    payments = made.read(payment_log.read(spark), uid="payments")
    rules = made.read(rule_log.read(spark), uid="rules")
    alerts = (
        payments.key_by("card")
        .connect(rules.broadcast(order_by="offset"))
        .process(Fraud(), schema="card string, rule string, found long", uid="fraud", order_by="offset")
    )
    alerts.write_to(ps.sinks.Files("fraud/alerts", format="json"), uid="alerts-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("fraud")).run(available_now=True)
    alerts = [json.loads(line) for file in Path("fraud/alerts").glob("*.json") for line in file.open()]
    for alert in sorted(alerts, key=lambda alert: (alert["card"], alert["found"])):
        print(f"{alert['card']}: {alert['found']} is beyond the rule {alert['rule']!r}")
