"""The pages of results, computed from the results that they cite."""
