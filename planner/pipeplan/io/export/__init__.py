"""Plans and time lines in the forms that other tools read."""
