"""Settings. Only this package and `bootstrap` look at the environment."""
