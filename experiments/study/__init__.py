"""What a claim is, the runs that test it, and how its rows are judged and reported."""
