"""Tools that come from elsewhere."""
