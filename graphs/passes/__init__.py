"""Policy passes: put a cache policy into a traced graph. A pass is a class."""
