"""What a run says of itself: records, progress, clock, summary."""
