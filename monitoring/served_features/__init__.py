"""Feature values that scored live requests, compared with those of the feature table for the same impressions."""
