"""Group fairness: notions, the penalty that training follows, and the metrics that people read."""
