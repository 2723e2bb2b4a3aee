"""Studies of what compression costs and keeps."""
