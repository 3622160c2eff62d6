"""Where data lie and how they become generations in the cache."""
