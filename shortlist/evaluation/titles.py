"""What the steps of a run are called, on its page and in a terminal."""

from __future__ import annotations

from typing import Final

TITLES: Final = {
    "look": "Look at live traffic",
    "find_champion": "Look up the champion",
    "ingest": "Read the log",
    "validate": "Validate rows and days",
    "fit_features": "Count statistics",
    "group_days": "Share the days out",
    "count_days": "Count groups of days",
    "merge_features": "Merge the statistics",
    "build_table": "Build the feature table",
    "build_days": "Build groups of days",
    "join_table": "Join the feature table",
    "store_features": "Feast: store, read back, compare",
    "train_xgboost": "Train XGBoost",
    "train_dlrm": "Train DLRM",
    "train_logistic": "Train logistic regression",
    "train_popularity": "Count popularity",
    "prove_xgboost": "XGBoost on a real Triton",
    "prove_dlrm": "DLRM on a real Triton",
    "score_champion": "Score the champion",
    "judge": "Gates",
    "freeze_reference": "Freeze the reference",
    "register": "Register in MLflow",
    "report": "Write the page",
    "roll_out": "Roll out",
}
"""What every step does, in the order of reports."""
