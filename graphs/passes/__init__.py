"""Policy passes: put a cache policy into a traced graph. One pass, one file, one class."""
