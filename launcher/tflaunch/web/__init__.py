"""The page: what runs are doing, in a browser on this machine."""
