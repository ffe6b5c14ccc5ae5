"""What people can ask for with a slash: one table for every front end. Nothing here remembers where anybody is."""
