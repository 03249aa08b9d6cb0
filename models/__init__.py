"""The ranking models, all with the interface of `shortlist.ranking.ranker.Ranker`."""

import shortlist.ranking  # noqa: F401 - says how OpenMP threads wait, which torch reads once, when it is first imported
