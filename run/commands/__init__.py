"""What train.py does between its first line and its last: what it sets up, writes down, measures and says."""
