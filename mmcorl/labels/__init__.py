"""From the answers of a cohort to pseudo-labels: voting in a group, and the rules of who teaches whom."""
