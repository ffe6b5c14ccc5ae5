"""What makes words of speech."""
