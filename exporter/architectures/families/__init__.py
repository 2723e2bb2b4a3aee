"""Records of the verified architectures, a file each with its `ARCHITECTURE`."""
